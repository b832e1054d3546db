"""The findings of a tuning and what it did not test, in words: for its page, the API and the note of a draft."""

from dataclasses import replace

from controlplane.common.figures import UNKNOWN
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output.effects import EffectRow, effect_row
from controlplane.evidence.previews import policy_job
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.tuning.compute import Tuned
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.types import Winner, WinnerEffect
from controlplane.evidence.twin.expected_error import described
from controlplane.evidence.twin.pool_model import Modelled
from fleet.counted import percent
from fleet.models import Pool

GOALS = {  # metric by objective
    "ttft": METRICS["ttft_p90_ms"],
    "tpot": METRICS["tpot_p90_ms"],
    "goodput": replace(METRICS["within_slo"], key="goodput", title="Goodput"),
}
BY_KEY = {metric.key: metric for metric in GOALS.values()}
REASONS = {
    "ttft": "lowest TTFT p90",
    "tpot": "lowest TPOT p90",
    "goodput": "highest goodput",
    "balanced": "best balance",
}


def not_tested(tuning: Tuning, pool: Pool, twin: Modelled, part: TrafficPart, tuned: Tuned) -> list[str]:
    origin = policy_job.of_origin(tuning, pool, part)
    expected = described(twin.expected)
    left_out = (*twin.cautions, *tuned.not_modelled)
    return [
        f"real engines: all was simulated in the twin ({twin.about}; expected error {expected})",
        "other traffic, other loads, other times than these requests, and other pools or numbers of instances",
        "warm caches: each part begins with empty ones, for the live version too",
        "failures, restarts and scaling of instances",
        *(each["text"] for each in (*origin, *trust.of_requests(tuned.by_class))),
        *(f"in the twin: {text}" for text in dict.fromkeys(left_out)),
    ]


def effect(row: WinnerEffect) -> EffectRow:
    """Return a metric of a winner on the held-out requests, against the live version."""
    return effect_row(BY_KEY[row["metric"]], (row["live"], row["tuned"]), row, row["n"])


def effect_text(row: EffectRow) -> str:
    levels = f"{row.title}: {row.before} → {row.after}"
    if row.interval == UNKNOWN:
        return f"{levels}: {row.verdict}, no interval"
    return f"{levels}, {row.difference} (95 % interval {row.interval}, n = {row.n:,}): {row.verdict}"


def note(tuning: Tuning, winner: Winner) -> str:
    """Return the note of the draft."""
    result = tuning.result or {}
    held_out = winner["check"]["n"]
    return "\n".join(
        [
            f"Trial {winner['trial']} of tuning {tuning.pk}: /policies/{tuning.policy.name}/tunings/{tuning.pk}/",
            f"Simulated against v{tuning.live_version} on {tuning.trace_name}, pool {tuning.pool}: "
            f"{tuning.done} trials on the first {percent(1 - tuning.held_out)} of the requests, "
            f"checked on the last {held_out:,}, which the search never saw.",
            *(f"- {effect_text(effect(row))}" for row in winner["effect"]),
            "Not tested:",
            *(f"- {text}" for text in result.get("not_tested", ())),
        ]
    )
