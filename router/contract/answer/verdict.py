"""The result of an attempt or a request, and who is at fault. Every counter uses these verdicts; docs/router.md lists
the counters of each."""

from typing import Literal, NamedTuple

from router.contract.answer.said import AnswerError

Result = Literal[
    "served",
    "client_error",
    "failed_alike",
    "failed_before_content",
    "failed_after_content",
    "router_failed",
    "refused",
    "cancelled",
    "picked",
]
# picked: the router chose an endpoint for a gateway, which reported no outcome
Label = Literal["", "ok", "client_error", "error", "refused", "cancelled", "picked"]
Fault = Literal["", "client", "engine", "router", "nobody"]


class Verdict(NamedTuple):
    label: Label  # in receipts, metrics, recorded traffic and use
    fault: Fault
    computes: bool = False  # tokens may have been computed, so that budgets and limits are charged


VERDICTS: dict[Result, Verdict] = {
    "served": Verdict("ok", "nobody", computes=True),
    "client_error": Verdict("client_error", "client"),
    "failed_alike": Verdict("client_error", "client"),
    "failed_before_content": Verdict("error", "engine"),
    "failed_after_content": Verdict("error", "engine", computes=True),
    "router_failed": Verdict("error", "router", computes=True),
    "refused": Verdict("refused", "nobody"),
    "cancelled": Verdict("cancelled", "client", computes=True),
    "picked": Verdict("picked", "nobody", computes=True),
}

BACK_PRESSURE = (429, 503)
_OF_THE_REQUEST = frozenset((400, 413, 414, 415, 431))  # the request is malformed or too large
_ENGINES_4XX = frozenset((408,))
# A single engine's refusal is that engine's fault, so the request is retried on another one
DOUBTFUL = frozenset((*range(400, 500), 501)) - _OF_THE_REQUEST - _ENGINES_4XX.union(BACK_PRESSURE)
# Refusals that mean a lack of capacity although their HTTP status suggests another cause
REFUSALS = frozenset(("deadline_exceeded", "deadline_unmeetable", "over_ttft_limit", "queue_timeout", "displaced"))
# An engine's answers to a missing or wrong key
KEY_REFUSED = frozenset((401, 403))


def of_status(status: int) -> Result:
    """Return the result of an answer by its HTTP status alone."""
    if status < 400:
        return "served"
    if status in BACK_PRESSURE:
        return "refused"
    if status in _ENGINES_4XX or (status >= 500 and status not in DOUBTFUL):
        return "failed_before_content"
    return "client_error"


def of_error(error: AnswerError, *, has_content: bool) -> Result:
    """Return the result of an answer of status 200 that contains an error. An ambiguous error after content is the
    engine's fault: the engine had accepted the request, and no other engine can be tried."""
    if error.is_clients and not (has_content and error.status in DOUBTFUL):
        return "client_error"
    if has_content:
        return "failed_after_content"
    return "refused" if error.status in BACK_PRESSURE else "failed_before_content"


# Error codes of the router's own answers for which neither the client nor an engine is at fault
_ROUTERS = frozenset(("router_exhausted", "shutting_down", "internal_error", "gateway_misconfigured"))


def of_own_answer(status: int, code: str) -> Result:
    """Return the result of a request that the router answers itself, from the HTTP status and the error code."""
    if code in _ROUTERS:
        return "router_failed"
    if status in BACK_PRESSURE or code in REFUSALS:
        return "refused"
    return "client_error" if status < 500 else "failed_before_content"


def of_routers_answer(status: int, code: object) -> Result:
    """Return the result of an answer as the client sees it. An error may come from the router, or from an engine
    through the router. `code` is the error's code."""
    if code == "failed_alike":
        return "failed_alike"
    is_own = isinstance(code, str) and (code in REFUSALS or code in _ROUTERS)
    return of_own_answer(status, str(code)) if is_own else of_status(status)
