"""Guards that query Prometheus: fill in the query's variables, read the answer, make the finding. Pure. An empty
answer, or one that cannot be judged, neither passes a step nor ends a delivery: a wrong query or an unreachable
Prometheus says nothing about the candidate.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.traffic.deliveries.judge.findings import GuardFinding, Verdict
from controlplane.traffic.deliveries.plan.types import PROMETHEUS, VARIABLES, PrometheusGuard

_NAMES = "|".join(VARIABLES)
_VARIABLE = re.compile(rf"\$(?:({_NAMES})|\{{({_NAMES})\}})")
SHOWN = 80  # characters of a query shown in a sentence


@dataclass(frozen=True, slots=True)
class QueryResult:
    value: float | None = None  # None if the answer is empty or not a number
    error: str = ""


QueryResults = Mapping[tuple[str, str], QueryResult]  # by pool and query


def expanded(query: str, values: Mapping[str, str]) -> str:
    """Return the query with its variables filled in and escaped for labels between double quotes."""
    return _VARIABLE.sub(lambda match: _escaped(values[match[1] or match[2]]), query)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def answer(body: Any) -> QueryResult:
    """Read the decoded body of GET or POST /api/v1/query."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, dict) or body.get("status") != "success":
        return QueryResult(error=f"it answered {str(body)[:200]}")
    kind, result = data.get("resultType"), data.get("result")
    if kind == "scalar":
        return _number(result)
    if kind != "vector" or not isinstance(result, list):
        return QueryResult(error=f"the query answers a {kind}: one number is judged")
    if len(result) > 1:
        return QueryResult(error=f"the query answers {len(result)} series: one number is judged, sum or max them")
    return _number(result[0].get("value")) if result else QueryResult()


def _number(pair: Any) -> QueryResult:
    """Read a pair [time, "number"]."""
    try:
        value = float(pair[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return QueryResult(error=f"it answered {str(pair)[:100]} for a number")
    return QueryResult(None if math.isnan(value) else value)


def judge(
    guard: PrometheusGuard, found: QueryResult, before: tuple[str, int] | None
) -> tuple[GuardFinding, tuple[str, int]]:
    """Return the finding, and `before` for the next look. A failure or an error counts only after `guard.for_looks`
    consecutive looks."""
    outcome = _outcome(guard, found)
    lasted = before[1] + 1 if before is not None and before[0] == outcome else 1
    early = outcome in ("fail", "error") and lasted < guard.for_looks
    made = GuardFinding(
        metric=PROMETHEUS,
        verdict="inconclusive" if early else outcome,
        text=_sentence(guard, found, lasted if outcome == "fail" else 0),
        estimate=found.value,
        worse=guard.limit,
        needed=True,
        effect=guard.does,
    )
    return made, (outcome, lasted)


def _outcome(guard: PrometheusGuard, found: QueryResult) -> Verdict:
    if found.error:
        return "error"
    if found.value is None:
        return "no_data"
    beyond = found.value > guard.limit if guard.fail_if == "above" else found.value < guard.limit
    return "fail" if beyond else "fine"


def _sentence(guard: PrometheusGuard, found: QueryResult, lasted: int) -> str:
    query = guard.query if len(guard.query) <= SHOWN else f"{guard.query[:SHOWN]}…"
    if found.error:
        return f"Prometheus cannot answer {query}: {found.error}"
    if found.value is None:
        return f"Prometheus has no data for {query}"
    looks = f", for {lasted} of {guard.for_looks} looks" if lasted else ""
    return f"{query} is {found.value:.4g}, fails {guard.fail_if} {guard.limit:g}{looks}"
