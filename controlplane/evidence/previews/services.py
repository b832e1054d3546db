"""Starts previews."""

import hashlib
import json

from django.utils import timezone

from controlplane.evidence.previews import policy_job, source
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.analysis.compute import simulated
from controlplane.evidence.previews.body import AS_USUAL, PreviewIn
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.policy_job import asked_again, store
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.traces import library
from controlplane.evidence.traces.types import BadTrace
from controlplane.evidence.twin.fingerprint import source_sha256
from controlplane.evidence.twin.pool_model import Modelled, NotModelled, twin_of
from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts.services import check_document, versioned
from controlplane.traffic.policies.drafts.versioned import seen_draft
from controlplane.traffic.policies.models import Policy
from fleet.jobs import FAILED
from fleet.models import Pool
from fleet.selectors import pools
from router.contract.values.problem import InvalidInput, invalid
from router.policy.schema import document as documents

KEPT = 200  # newest previews kept per policy
ABOUT = ("live_version", "draft_revision", "draft_sha256", "pool", "trace_name", "seeds", "max_requests")  # audited


def start(policy: Policy, actor: Actor, asked: PreviewIn = AS_USUAL, *, if_match: str | None = None) -> Preview:
    """Preview the open draft of a policy; a repeated request returns the earlier preview. Raise Conflict if no draft is
    open or `if_match` is not its ETag; InvalidInput if there is no pool, no traffic or no difference.
    """
    draft, live = seen_draft(versioned(policy), if_match), policies.live_version(policy)
    document = check_document(draft.upgraded)
    if document == live.upgraded:
        raise InvalidInput(f"the draft equals v{live.number}, which is live: nothing would change")
    pool = pool_of(policy, asked.pool)
    part = part_of(pool, asked.trace, asked.max_requests, asked.seeds[0])
    made = Preview(
        policy=draft.policy,
        live_version=live.number,
        live_sha256=live.sha256,
        draft_revision=draft.revision,
        draft_sha256=documents.sha256(document),
        draft_document=document,
        pool=pool.name,
        trace_name=part.name,
        trace=part.facts(),
        max_requests=asked.max_requests,
        seeds=asked.seeds,
        total=simulated(len(asked.seeds), len(part.trace.requests)),
    )
    try:
        made.key = _key(made, part, twin_of(pool))
    except NotModelled as error:
        return _not_modelled(made, actor, str(error))
    known = asked_again(Preview, made.key)
    if known is None:
        policy_job.start(made, actor, ABOUT, KEPT)
    return known or made


def pools_of(policy: Policy) -> list[Pool]:
    """Return the pools that use the policy."""
    return list(pools().filter(policy=policy.name).order_by("name"))


def pool_of(policy: Policy, asked: str) -> Pool:
    """Return the named pool of the policy, or else the one with the most recorded requests. Raise InvalidInput."""
    by_name = {pool.name: pool for pool in pools_of(policy)}
    names = ", ".join(by_name)
    if not by_name:
        raise invalid(
            "pool", asked or None, f"no pool uses policy {policy.name}, so there is no fleet to preview it on"
        )
    if asked and asked not in by_name:
        raise invalid("pool", asked, f"pool {asked} does not use policy {policy.name}; allowed: {names}")
    if asked or len(by_name) == 1:
        return by_name[asked or next(iter(by_name))]
    counts = source.recorded_counts()
    return max(by_name.values(), key=lambda pool: counts.get(pool.name, 0))


def part_of(pool: Pool, trace: str, count: int, seed: int) -> TrafficPart:
    """Return at most `count` requests to play. Raise InvalidInput."""
    try:
        return source.take(trace, count, seed) if trace else source.choose(pool.name, count, seed)
    except (library.TraceError, BadTrace) as error:
        raise invalid("trace", trace, str(error)) from None


def _key(preview: Preview, part: TrafficPart, twin: Modelled) -> str:
    """Hash everything that determines the result and its cautions."""
    text = (preview.live_version, preview.live_sha256, preview.draft_sha256, preview.pool, part.name, preview.seeds)
    model = (
        twin.basis,
        twin.about,
        twin.cautions,
        twin.expected,
        sorted((name, repr(engine)) for name, engine in twin.fleet.instances.items()),
        repr(twin.fleet.store),
    )
    asked = [source_sha256(), preview.policy_id, text, part.content, model]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _not_modelled(preview: Preview, actor: Actor, cause: str) -> Preview:
    now = timezone.now()
    preview.status, preview.cause = FAILED, cause
    preview.started_at = preview.ended_at = preview.asked_at = preview.created_at = now
    preview.trust = [trust.caution("not_modelled", cause)]
    store(preview, actor, ABOUT, KEPT)
    return preview
