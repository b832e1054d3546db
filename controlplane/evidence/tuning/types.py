"""A tuning and its result in the form in which they are stored, sent and shown. Times in ms, shares 0–1; None is
unknown or infinite."""

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from controlplane.common.description import Description
from controlplane.evidence.experiments.results.types import DifferenceBounds
from controlplane.evidence.previews.analysis.types import PolicyJobView
from controlplane.evidence.twin.expected_error import ExpectedError

Objective = Literal["ttft", "tpot", "goodput"]
Reason = Literal["ttft", "tpot", "goodput", "balanced"]
GoalMetric = Literal["ttft_p90_ms", "tpot_p90_ms", "goodput"]


class GoalValues(TypedDict):
    """The values of the goals, from Goals.as_dict."""

    n: Annotated[int, Description("Requests")]
    answered: int
    ttft_p90_ms: Annotated[float | None, Description("A request without an answer counts as infinite; null: infinite")]
    tpot_p90_ms: Annotated[float | None, Description("Over answers with at least two tokens")]
    goodput: Annotated[float, Description("0–1 share of all requests that were answered within the limits")]


class TrialView(GoalValues):
    number: int
    values: dict[str, Any]


class GoalsBySplit(TypedDict):
    search: GoalValues
    check: Annotated[GoalValues, Description("Result on the held-out requests")]


class WinnerEffect(DifferenceBounds):
    """One goal of a winner against the live version, on the held-out requests; the intervals hold jointly for all
    winners."""

    metric: GoalMetric
    live: float | None
    tuned: float | None
    n: int


class Winner(GoalsBySplit):
    trial: int
    reasons: Annotated[list[Reason], Description("Objectives in which it is the best on the searched requests")]
    values: Annotated[dict[str, Any], Description("Values by parameter path")]
    effect: Annotated[list[WinnerEffect], Description("Difference from the live version on the held-out requests")]


class LimitValues(TypedDict):
    ttft_ms: Annotated[float | None, Description("null: the live version's p90")]
    tpot_ms: float | None


class FoundByTuning(TypedDict):
    """The findings of the search, before it is known what was not tested."""

    limits: Annotated[LimitValues, Description("Of goodput; null: none")]
    live: GoalsBySplit
    front: Annotated[list[int], Description("Trials that no other trial beats")]
    winners: list[Winner]


class TuningResult(FoundByTuning):
    not_tested: list[str]


class SearchedParameter(TypedDict):
    path: str
    low: float
    high: float
    step: float | None
    log: Annotated[bool, Description("Searched on a logarithmic scale")]
    choices: Annotated[list[Any], Description("Instead of bounds")]


class TuningTwin(TypedDict):
    basis: str
    about: str
    expected: ExpectedError | None


class TuningView(PolicyJobView):
    """A tuning in the API, without its trials."""

    total: Annotated[int, Description("Trials")]
    seed: int
    workers: int
    max_requests: int
    objectives: list[Objective]
    time_limit_s: int | None
    held_out: float
    parameters: list[SearchedParameter]
    limits: Annotated[LimitValues, Description("As asked for")]
    twin: TuningTwin
    result: Annotated[TuningResult | None, Description("null until it is done")]
    drafted: Annotated[int | None, Description("The trial whose values became a draft last")]


class TuningWithTrials(TuningView):
    trials: list[TrialView]
