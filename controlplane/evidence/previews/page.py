"""Context of the preview panel, of its one-line form and of its choices, on the pages of a draft."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from controlplane.common.figures import seconds
from controlplane.evidence.previews import display, policy_job, selectors
from controlplane.evidence.previews.analysis.trust import LEAST_REQUESTS
from controlplane.evidence.previews.analysis.types import PreviewView
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.source import BUILT_IN
from controlplane.evidence.traces import library
from controlplane.people.permissions import operator_controls
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.models import Draft, Policy
from controlplane.traffic.policies.selectors import scope_of
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents

DEFAULT_TRACE = f"recorded traffic of the pool; {BUILT_IN} below {LEAST_REQUESTS} requests"


@dataclass(frozen=True, slots=True)
class VersionPreview:
    """The preview of a published version, in a few words."""

    preview: int
    text: str


def panel(
    request: HttpRequest, policy: Policy, draft: Draft | None, preview: Preview | None, *, fixed: bool = False
) -> dict[str, Any]:
    """Return the context of the panel. `draft` is the open draft. With `fixed`, this preview remains even if a newer
    one starts."""
    found = selectors.as_dict(preview) if preview else None
    return {
        "policy": policy,
        "draft": draft,
        "preview": found,
        "shown": display.shown(found, status_of(policy, draft, found)) if found else None,
        "age_s": policy_job.trace_of(preview, preview.created_at)["age_s"] if preview else None,
        "fixed": fixed,
        "refresh": _refresh(policy, preview if fixed else None),
        **operator_controls(request),
    }


def status_of(policy: Policy, draft: Draft | None, found: PreviewView) -> display.PreviewStatus:
    return display.status_of(
        found,
        live=policies.live_version(policy).number,
        draft_revision=draft.revision if draft else None,
        draft_sha256=documents.sha256(draft.upgraded) if draft else None,
    )


def _refresh(policy: Policy, preview: Preview | None) -> str:
    if preview is None:
        return reverse("draft-preview-state", kwargs={"name": policy.name})
    return reverse("preview-state", kwargs={"name": policy.name, "number": preview.pk})


def choices(policy: Policy, last: PreviewView | None, typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the pools and traces to choose from, and the chosen ones: as entered, or else as in the last preview."""
    pools = scope_of(policy).pools
    pool = typed.get("pool") or (last["pool"] if last else "")
    pool = pool if pool in pools else next(iter(pools), "")
    seeds = typed.get("seeds") or (", ".join(map(str, last["seeds"])) if last else "1")
    trace, entries = typed.get("trace", ""), library.entries()
    return {
        "pools": pools,
        "pool": pool,
        "traces": [("", DEFAULT_TRACE), *((entry.name, _label(entry)) for entry in entries)],
        "trace": trace,
        "seeds": seeds,
        "summary": ", ".join(
            [pool or "no pool", trace or _without_a_name(entries, pool), f"seed{'s' if ',' in seeds else ''} {seeds}"]
        ),
    }


def _without_a_name(entries: Sequence[library.TraceEntry], pool: str) -> str:
    """Return the traffic that source.choose picks without a named trace."""
    name = f"{library.RECORDED}{pool}"
    count = next((entry.recorded.requests for entry in entries if entry.recorded and entry.name == name), 0)
    return "recorded traffic" if count >= LEAST_REQUESTS else f"{BUILT_IN} (only {count:,} requests recorded)"


def _label(entry: library.TraceEntry) -> str:
    """Label a trace with its size and age, if these are known without reading it."""
    if entry.recorded:
        return f"{entry.name}: {entry.recorded.requests:,} requests, newest {seconds(entry.recorded.newest_age_s)} old"
    size = f", {entry.summary.requests:,} requests" if entry.summary else ""
    return f"{entry.name}: {entry.source}{size}"


def by_version(policy: Policy) -> dict[int, VersionPreview]:
    """Return the previewed versions by number."""
    versions = policies.history(policy).defer("document")
    return {
        number: VersionPreview(
            preview.pk, f"{display.share(preview.result['changed']['share'])} of requests routed differently"
        )
        for number, preview in selectors.previews_of_versions(policy, versions).items()
        if preview.result
    }


def problems_of(error: Exception) -> list[tuple[str, str]]:
    """Return (field or empty, message) for each reason why no preview can start."""
    problems = error.problems if isinstance(error, InvalidInput) else ()
    return [(problem.path, problem.text) for problem in problems] or [("", str(error))]
