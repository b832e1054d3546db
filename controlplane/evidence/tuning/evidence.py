"""The findings of a tuning and what it did not test, in words: for its page, the API and the note of a draft."""

from controlplane.evidence.previews import policy_job
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.tuning.compute import Tuned
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.types import Winner, WinnerEffect
from controlplane.evidence.twin.expected_error import described
from controlplane.evidence.twin.pool_model import Modelled
from fleet.counted import percent, signed, significant
from fleet.models import Pool

TITLES = {"ttft_p90_ms": ("TTFT p90", "ms"), "tpot_p90_ms": ("TPOT p90", "ms"), "goodput": ("Goodput", "%")}
GOALS = {"ttft": "ttft_p90_ms", "tpot": "tpot_p90_ms", "goodput": "goodput"}  # metric by objective
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


def shown(metric: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    unit = TITLES[metric][1]
    return f"{significant(100 * value if unit == '%' else value)} {unit}"


def differing(row: WinnerEffect) -> tuple[str, str] | None:
    """Return (difference, interval) of a winner's metric; a share differs by points. None without an interval."""
    metric = row["metric"]
    if row["difference"] is None or row["low"] is None or row["high"] is None:
        return None
    unit = TITLES[metric][1]
    scale, name = (100, "points") if unit == "%" else (1, unit)
    values = [scale * value for value in (row["difference"], row["low"], row["high"])]
    difference, low, high = (signed(value, significant(abs(value))) for value in values)
    return f"{difference} {name}", f"{low} to {high} {name}"


def effect_text(row: WinnerEffect) -> str:
    """Say one metric of a winner on the held-out requests."""
    metric, differs = row["metric"], differing(row)
    levels = f"{TITLES[metric][0]}: {shown(metric, row['live'])} → {shown(metric, row['tuned'])}"
    if differs is None:
        return f"{levels}: {row['verdict']}, no interval"
    return f"{levels}, {differs[0]} (95 % interval {differs[1]}, n = {row['n']:,}): {row['verdict']}"


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
            *(f"- {effect_text(row)}" for row in winner["effect"]),
            "Not tested:",
            *(f"- {text}" for text in result.get("not_tested", ())),
        ]
    )
