"""The meaning of an answer to a line: for its outcome, and for the lines behind it. Pure.

router/contract judges answers for routers and batches alike: their status in verdict.py, their text in answers.py.
"""

from dataclasses import dataclass
from typing import Any, Literal

from controlplane.traffic.batches.lines import document_of
from router.contract import answers, verdict
from router.contract.answers import AnswerError

LONGEST_TEXT = 300  # longest text of a reason, characters
Outcome = Literal["answered", "failed", "again", "later"]
# Outcomes by result; any other result means another try
_OUTCOMES: dict[str, Outcome] = {"client_error": "failed", "failed_alike": "failed", "refused": "later"}


@dataclass(frozen=True, slots=True)
class LineAnswer:
    status: int
    request_id: str
    body: bytes
    retry_after_s: int | None = None
    is_final: bool = False  # the router says that the request must not be repeated: it may have ended its engine


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nothing of a batch can be sent now."""

    code: str
    message: str


NO_ROUTER = Reason("no_router", "no router is live")


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of one answer. `again`: failed unless another try is left; `later`: refused for a reason that further
    lines share."""

    outcome: Outcome
    document: Any
    error: dict[str, str] | None = None  # fault of an answer with status 200
    reason: Reason | None = None


def meaning(answer: LineAnswer) -> Meaning:
    document = document_of(answer.body)
    said = answers.said(answer.body) if answer.status == 200 else None
    fault = answers.wrong_with(said, answer.body, generates=True) if answer.status == 200 else None
    if answer.status == 200 and fault is None:
        return Meaning("answered", document)
    result = _result_of(answer.status, document, fault)
    outcome = "failed" if result == "served" else _OUTCOMES.get(result, "failed" if answer.is_final else "again")
    error = {"code": "engine_error", "message": fault.message[:LONGEST_TEXT]} if fault is not None else None
    reason = _reason(answer.status, document) if outcome == "later" else None
    return Meaning(outcome, document, error, reason)


def _result_of(status: int, document: object, fault: AnswerError | None) -> verdict.Result:
    if fault is not None:
        return verdict.of_error(fault, has_content=False)
    error = document.get("error") if isinstance(document, dict) else None
    return verdict.of_routers_answer(status, error.get("code") if isinstance(error, dict) else None)


def _reason(status: int, document: object) -> Reason:
    error = document.get("error") if isinstance(document, dict) else None
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    known = code if isinstance(code, str) and code else f"status_{status}"
    return Reason(known[:64], (message if isinstance(message, str) and message else f"status {status}")[:LONGEST_TEXT])
