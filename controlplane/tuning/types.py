"""The result of a tuning as it is stored, sent and shown. Times in ms, shares 0–1; None is unknown or infinite."""

from typing import TypedDict

from router.contract.json_value import JsonObject


class GoalValues(TypedDict):
    """Goals.as_dict."""

    n: int
    answered: int
    ttft_p90_ms: float | None
    tpot_p90_ms: float | None
    goodput: float


class WinnerEffect(TypedDict):
    """One goal of a winner against the live version, on the held-out requests."""

    metric: str
    live: float | None
    tuned: float | None
    difference: float | None
    low: float | None  # of the 95 % interval
    high: float | None
    n: int
    verdict: str


class Winner(TypedDict):
    trial: int
    reasons: list[str]
    values: JsonObject  # by path of the parameter
    search: GoalValues
    check: GoalValues
    effect: list[WinnerEffect]


class LiveGoals(TypedDict):
    search: GoalValues
    check: GoalValues


class TuningResult(TypedDict):
    limits: dict[str, float | None]
    live: LiveGoals
    front: list[int]  # numbers of trials
    winners: list[Winner]
