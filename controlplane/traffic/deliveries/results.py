"""The result of a step: a verdict for each comparison, as a sentence that is stored with the delivery. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from controlplane.traffic.deliveries.judge.findings import GuardFinding, rounded
from controlplane.traffic.deliveries.judge.verdicts import margin
from controlplane.traffic.deliveries.plan.types import ComparisonGuard, Plan
from controlplane.traffic.deliveries.states import Trigger
from router.contract.values.reading import read_value

SLIGHT: Final = "worse, within the limit"
UNSURE: Final = "worse, not surely beyond the limit"
Word = Literal[
    "better",
    "no worse",
    "enough to go on",
    "worse, within the limit",
    "worse, not surely beyond the limit",
    "cannot tell",
    "worse",
]


class Shown(Struct, frozen=True):
    """A comparison that had to be fine, or a guard that failed. Shares and relative differences are 0–1."""

    metric: str
    word: Word
    text: str
    pool: str
    request_class: str = field(name="class")
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    n: tuple[int, int] = (0, 0)


class DeliveryStepResult(Struct, frozen=True):
    step: int  # from 1
    at: str  # ISO 8601, UTC
    what: str  # transition that ended or stopped the step
    shown: tuple[Shown, ...] = ()


def of_step(step: int, what: Trigger, at: datetime, findings: Sequence[GuardFinding]) -> dict[str, Any]:
    """Return the result of a step as the delivery stores it."""
    kept = tuple(_shown(each) for each in findings if each.needed or each.verdict == "fail")
    return dict(rounded(msgspec.to_builtins(DeliveryStepResult(step + 1, at.isoformat(), str(what), kept))))


def read(stored: object, plan: Plan) -> tuple[DeliveryStepResult, ...]:
    """Return the stored results. Earlier versions wrote "no worse" or "enough to go on" for any result that let the
    step pass, and "cannot tell" for any other that did not fail."""
    limits: dict[tuple[str, str], ComparisonGuard] = {
        (guard.metric, name): guard
        for guard in plan.guards
        if isinstance(guard, ComparisonGuard)
        for name in guard.classes
    }
    return tuple(
        replace(each, shown=tuple(_worded(row, limits.get((row.metric, row.request_class))) for row in each.shown))
        for each in read_value(stored, tuple[DeliveryStepResult, ...])
    )


def _worded(row: Shown, guard: ComparisonGuard | None) -> Shown:
    limit = None if guard is None else guard.worse
    if row.word in ("no worse", "enough to go on", "cannot tell") and (unsure := _worse(row.lower, row.upper, limit)):
        return replace(row, word=unsure)
    if guard is None or row.word != "no worse" or row.upper is None or row.upper <= guard.worse:
        return row
    sure = margin(row.metric, row.lower, row.upper, guard.worse, guard.fine)
    text = row.text if sure in row.text else f"{row.text}: {sure}"
    return replace(row, word="enough to go on", text=text)


def _shown(each: GuardFinding) -> Shown:
    return Shown(
        each.metric, word(each), each.text, each.pool, each.request_class, each.estimate, each.lower, each.upper, each.n
    )


def word(finding: GuardFinding) -> Word:
    """Return the word for a comparison of an ended step. Better: the interval is entirely on the candidate's side. No
    worse: no part of it is beyond the limit. Enough to continue: no part of it is beyond `fine`. An interval entirely
    on control's side has a separate word.
    """
    if finding.verdict == "fail":
        return "worse"
    if unsure := _worse(finding.lower, finding.upper, finding.worse):
        return unsure
    if finding.verdict != "fine":
        return "cannot tell"
    if finding.upper is not None and finding.upper < 0:
        return "better"
    if finding.upper is None or finding.worse is None:
        return "no worse"
    return "no worse" if finding.upper <= finding.worse else "enough to go on"


def _worse(lower: float | None, upper: float | None, limit: float | None) -> Word | None:
    """Return the word for an interval that is entirely worse than control, the same as for a running step."""
    if lower is None or lower <= 0:
        return None
    return SLIGHT if upper is not None and limit is not None and upper <= limit else UNSURE
