"""Simulates a canary of the draft: what a delivery's guards would see, beside the true effect. Pure. The true effect is
that of the draft on the whole pool; a canary's arms share engines and queues, so its measured effect differs.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from controlplane.evidence.previews.analysis.effect import Pair, of_class
from controlplane.evidence.previews.analysis.tallies import Tallies, answered, arm_and_cell, is_slow
from controlplane.evidence.previews.analysis.types import CanaryEffect
from controlplane.evidence.twin.simulation.types import Arms, Simulated
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.statistics import slow
from controlplane.traffic.deliveries.judge.statistics.slow import Limits
from controlplane.traffic.deliveries.judge.verdicts import judge
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import COMPARISONS
from router.policy.types import ParsedPolicy

SHARE = 0.1
SALT = "preview"
PLAN = parse_plan({"steps": [{"mode": "canary", "share": SHARE, "for_s": 600}, {"mode": "full"}]}, pools=["pool"])


def arms(draft: ParsedPolicy) -> Arms:
    return Arms(draft, lambda session, _: arm_and_cell(SALT, session, SHARE)[0])


def seen(played: Sequence[Simulated], pairs: Sequence[Pair]) -> CanaryEffect:
    """Return the guards' view. `played` are the requests of the canary; `pairs` the same requests under the live
    version and under the draft."""
    limits = slow.limits((ours.request_class, ours.input_tokens, (ours.ttft_s or 0.0) * 1000) for ours, _ in pairs)
    tallies = Tallies(limits)
    for answer in answered(played, SALT):
        tallies.add(answer)
    findings = judge(tallies.evidence(), PLAN, SHARE)
    return {
        "share": SHARE,
        "requests": len(played),
        "duration_s": round(max((request.sent_s for request in played), default=0.0), 1),
        "guards": [
            {**each.as_dict(), "truth": _truth(each, pairs, limits)} for each in findings if each.metric != "arms"
        ],
    }


def _truth(finding: GuardFinding, pairs: Sequence[Pair], limits: Limits) -> float | None:
    """Return the true effect of a comparison, in the estimate's unit; None without answers under both versions."""
    if finding.metric not in COMPARISONS:
        return None
    mine = of_class(pairs, finding.request_class)
    if finding.metric == "slow":
        return _slow_truth(mine, limits.get(finding.request_class))
    name = f"{finding.metric}_s"
    both = [(getattr(ours, name), getattr(theirs, name)) for ours, theirs in mine]
    ratios = [math.log(theirs / ours) for ours, theirs in both if ours and theirs]
    return round(math.expm1(fmean(ratios)), 6) if ratios else None


def _slow_truth(pairs: Sequence[Pair], line: tuple[float, float, float] | None) -> float | None:
    answers = [(ours, theirs) for ours, theirs in pairs if ours.ttft_s and theirs.ttft_s]
    if line is None or not answers:
        return None
    shares = [
        fmean(is_slow((one.ttft_s or 0.0) * 1000, math.log(max(one.input_tokens, 1)), line) for one in side)
        for side in zip(*answers, strict=True)
    ]
    return round(shares[1] - shares[0], 6)
