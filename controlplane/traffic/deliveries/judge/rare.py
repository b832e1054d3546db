"""Defers classes that are too rare to wait for from a canary to a later step. Pure.

A class with a twentieth of the requests takes ten times as long to judge as one with half of them. If a later step
judges it with more requests, a canary passes as soon as the other classes are fine. Failures still count.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from controlplane.traffic.deliveries.judge.findings import GuardFinding, Verdict
from controlplane.traffic.deliveries.judge.sums import Evidence
from controlplane.traffic.deliveries.judge.verdicts import estimated, in_unit, is_rarer, shown
from controlplane.traffic.deliveries.plan.types import RARE, Canary, ComparisonGuard, Plan, Switchback
from fleet.counted import percent


def deferred(
    findings: Sequence[GuardFinding], evidence: Evidence, plan: Plan, step: int, share: float
) -> tuple[GuardFinding, ...]:
    """Return the findings of a canary with this share; rare classes are deferred if a later step judges them.

    At least one comparison is kept, so a pool with little traffic stays without data.
    """
    later = next((each for each in plan.steps[step + 1 :] if isinstance(each, Canary | Switchback)), None)
    if later is None:
        return tuple(findings)
    where = f"at {percent(later.share, '.3g')}" if isinstance(later, Canary) else "in the switchback"
    why = f"too rare at {percent(share, '.3g')} to wait for: judged {where}"
    return _unless_all(findings, tuple(_deferred(each, evidence, plan, why) for each in findings))


def left_out(findings: Sequence[GuardFinding], evidence: Evidence, plan: Plan) -> list[GuardFinding]:
    """Return the findings of a finished switchback. No later step judges rare classes, so those with too few pairs are
    left out: they must not keep a good candidate from passing."""
    why = "too rare for blocks of this length: not judged"
    found = [_deferred(each, evidence, plan, why, ("no_data",)) for each in findings]
    return list(_unless_all(findings, found))


def _unless_all(before: Sequence[GuardFinding], after: Sequence[GuardFinding]) -> tuple[GuardFinding, ...]:
    waits = any(each.needed and each.verdict not in ("deferred", "not_judged") for each in after)
    return tuple(after if waits else before)


def _deferred(
    finding: GuardFinding,
    evidence: Evidence,
    plan: Plan,
    why: str,
    verdicts: Sequence[Verdict] = ("no_data", "inconclusive"),
) -> GuardFinding:
    is_open = finding.needed and finding.verdict in verdicts
    if not is_open or not is_rarer(evidence, finding.request_class, RARE):
        return finding
    harm = next(_pointing_to_harm(evidence, finding.request_class, plan), "")
    if harm:
        return replace(finding, text=f"{finding.text}; this step waits for it: {harm} so far")
    return replace(finding, verdict="deferred", text=f"{finding.text}; {why}")


def _pointing_to_harm(evidence: Evidence, name: str, plan: Plan) -> Iterator[str]:
    """Yield the class's comparisons that exceed `worse` by more than their standard error."""
    for guard in plan.guards:
        if not isinstance(guard, ComparisonGuard) or name not in guard.classes:
            continue
        estimate = estimated(evidence, guard.metric, name)
        if estimate is not None and in_unit(guard.metric, estimate.difference - estimate.se) > guard.worse:
            yield shown(guard.metric, name, in_unit(guard.metric, estimate.difference))
