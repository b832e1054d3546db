"""The measurements after a row of a plan was applied: finds the pool and the time, and reads its receipts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.evidence.plan import planned
from controlplane.evidence.plan.actual import WhatCame, what_came
from controlplane.evidence.plan.command import SIMULATED
from controlplane.evidence.planning.models import FleetPlan
from controlplane.traffic.deliveries.judge.evidence import newest_receipts
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.models import PolicyVersion
from fleet import selectors
from fleet.counted import counted
from fleet.jobs import DONE
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.models import InstanceEvent, Pool, PoolVersion
from fleet.snapshot import pool_spec, scale_of
from fleet.spec.fleet_spec import PoolSpec, config_hash
from fleet.spec.versions import spec_of
from router.policy.schema import document
from router.policy.types import ParsedPolicy

NOTE = "note"  # kind of the only events of a pool that do not change it


@dataclass(frozen=True, slots=True)
class AppliedRow:
    """A row of a plan that a pool runs, and its measurements; or the reason why there is no comparison."""

    row: int = 0  # counted from 1; 0: no pool matches a row
    pool: str = ""
    reason: str = ""  # empty if something is judged
    caution: str = ""
    since: datetime | None = None
    came: WhatCame | None = None


@dataclass(frozen=True, slots=True)
class _Match:
    at: int
    row: planned.Row
    pool: Pool
    live: PolicyVersion


def what_came_of(plan: FleetPlan) -> AppliedRow:
    answer: planned.Answer | None = plan.result if plan.status == DONE else None
    if not answer or not answer["rows"]:
        return AppliedRow(reason=f"The plan has no rows; it is {plan.status}.")
    match = next(_matches(answer), None)
    if match is None:
        return AppliedRow(reason=_never(answer))
    at, row, pool = match.at, match.row, match.pool
    if not row.get("predicted"):
        return AppliedRow(at, pool.name, "An earlier Weir made this plan, without figures by class: plan again.")
    ready, _ = selectors.pool_ready(pool.name)
    if ready < row["replicas"]:
        return AppliedRow(at, pool.name, f"{ready} of {row['replicas']} instances are ready.")
    changed = _last_change(pool, plan)
    receipts = [one for one in newest_receipts() if one.pool == pool.name]
    came = what_came(row["predicted"], answer, receipts, changed.timestamp(), match.live.number)
    reason = came.reason if came.requests else "The routers keep no receipt since."
    since = datetime.fromtimestamp(came.since, changed.tzinfo)
    return AppliedRow(at, pool.name, reason, _caution(match), since, came)


def _matches(answer: planned.Answer) -> Iterator[_Match]:
    for pool in _pools(answer):
        live = _live(pool)
        for at, row in enumerate(answer["rows"], start=1):
            if live is not None and _is_as_in(pool, answer, row) and _parsed(live)["strategy.name"] == row["policy"]:
                yield _Match(at, row, pool, live)


def _pools(answer: planned.Answer) -> QuerySet[Pool]:
    measured = answer.get("measured")
    return selectors.pools().filter(**{"name": measured["pool"]} if measured else {"kind": SIMULATED}).order_by("name")


def _live(pool: Pool) -> PolicyVersion | None:
    try:
        return policies.live_version(policies.policy(pool.policy))
    except NoSuchPolicy:
        return None


def _parsed(live: PolicyVersion) -> ParsedPolicy:
    return document.parse(live.document)


def _is_as_in(pool: Pool, answer: planned.Answer, row: planned.Row) -> bool:
    if not _has_engine(pool_spec(pool), answer, row):
        return False
    scale = scale_of(pool, timezone.now())
    return scale.replicas == row["replicas"] and scale.prefills in (None, row["engine"].get("prefill_instances"))


def _has_engine(pool: PoolSpec, answer: planned.Answer, row: planned.Row) -> bool:
    """Return whether the options equal the measured ones or those of the row, including defaults."""
    measured, spec = answer.get("measured"), KINDS[SIMULATED].spec
    try:
        if measured:
            return bool(config_hash(pool) == measured["config_hash"])
        return bool(build(spec, pool.engine) == build(spec, row["engine"]))
    except LookupError:  # an option of an earlier version no longer exists
        return False


def _caution(match: _Match) -> str:
    usual = _parsed(match.live) == document.parse(document.default(match.row["policy"]))
    return "" if usual else f"The policy {match.pool.policy} has different parameters from the one in the plan."


def _last_change(pool: Pool, plan: FleetPlan) -> datetime:
    """Return the time since which pool and instances have been unchanged, because a prediction must precede its
    measurements.
    """
    changes = InstanceEvent.objects.filter(pool=pool.name).exclude(kind=NOTE)
    latest = changes.values_list("at", flat=True).first() or pool.created_at
    return max(latest, plan.ended_at or latest)


def _alike(pool: Pool, answer: planned.Answer, rows: list[tuple[int, planned.Row]]) -> str:
    """Describe what the pool lacks to match the nearest row with the same engines; empty if its engines differ."""
    spec, live, needs = pool_spec(pool), _live(pool), list[tuple[int, str]]()
    count, strategy = scale_of(pool, timezone.now()).replicas, _parsed(live)["strategy.name"] if live else "none"
    for at, row in rows:
        if _has_engine(spec, answer, row):
            texts = [f"{counted(row['replicas'], 'instance')} instead of {count}"] * (count != row["replicas"])
            texts += [f"the strategy {row['policy']} published instead of {strategy}"] * (strategy != row["policy"])
            needed = " and ".join(texts) or f"{row['engine'].get('prefill_instances')} prefill instances"
            needs.append((len(texts), f"{pool.name} has the engines of row {at}; it needs {needed}."))
    return min(needs)[1] if needs else ""


def _never(answer: planned.Answer) -> str:
    """Describe which pool nearly matches or matched a row."""
    rows = list(enumerate(answer["rows"], start=1))
    for pool in _pools(answer):
        if alike := _alike(pool, answer, rows):
            return alike
        later: PoolVersion | None = None
        for version in pool.versions.filter(config__kind=pool.kind):
            row = next((at for at, row in rows if _has_engine(spec_of(version), answer, row)), 0)
            if row and later is not None:
                until = f"version {later.number}, {later.at:%Y-%m-%d %H:%M} UTC"
                return f"The fleet has changed: {pool.name} had the engines of row {row} until {until}."
            later = version
    return "No pool matches a row in engines, number of instances and policy."
