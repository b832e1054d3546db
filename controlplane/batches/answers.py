"""What the answer to a line means: for its outcome, and for the lines behind it. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

from controlplane.batches.lines import document_of

LATER = (429, 503)  # statuses that are asked again until the window is over
BROKEN_ENDS = ("error", "abort")  # finish reasons of answers that an engine did not end
BROKEN_STATES = ("failed", "cancelled")  # of a response, in the Responses API
LONGEST_TEXT = 300  # characters of a reason
Outcome = Literal["answered", "failed", "again", "later"]


@dataclass(frozen=True, slots=True)
class LineAnswer:
    status: int
    request_id: str
    body: bytes
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nothing of a batch can be sent now."""

    code: str
    message: str


NO_ROUTER = Reason("no_router", "no router is live")


@dataclass(frozen=True, slots=True)
class Meaning:
    """`again`: failed unless another try is left; `later`: refused for a reason that holds for further lines."""

    outcome: Outcome
    document: Any
    error: dict[str, str] | None = None  # what is wrong with an answer of status 200
    reason: Reason | None = None


def meaning(answer: LineAnswer) -> Meaning:
    document = document_of(answer.body)
    if answer.status == 200:
        fault = fault_of(document)
        if fault is None:
            return Meaning("answered", document)
        error = {"code": "engine_error", "message": fault[:LONGEST_TEXT]}
        return Meaning("failed" if _blames_client(document) else "again", document, error)
    if answer.status in LATER:
        return Meaning("later", document, None, _reason(answer.status, document))
    return Meaning("again" if answer.status >= 500 else "failed", document)


def fault_of(document: object) -> str | None:
    """Why a document of status 200 is no answer; None when it is one."""
    if not isinstance(document, dict):
        return "the answer is not a JSON object"
    error = document.get("error")
    if error is not None:
        return _message(error) or "the answer is an error"
    if document.get("object") == "error":
        return _message(document) or "the answer is an error"
    if document.get("status") in BROKEN_STATES:
        return f"the response is {document['status']}"
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        end = choice.get("finish_reason") if isinstance(choice, dict) else None
        end = end.get("type") if isinstance(end, dict) else end
        if end in BROKEN_ENDS:
            return f"the engine did not end the answer: finish_reason {end}"
    return None


def _blames_client(document: Any) -> bool:
    """True for an error object with the number of a status that the same request gets again."""
    if not isinstance(document, dict):
        return False
    error = document.get("error")
    code = (error if isinstance(error, dict) else document).get("code")
    return isinstance(code, int) and 400 <= code < 500 and code not in LATER


def _reason(status: int, document: object) -> Reason:
    error = document.get("error") if isinstance(document, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    known = code if isinstance(code, str) and code else f"status_{status}"
    return Reason(known[:64], (_message(error) or f"status {status}")[:LONGEST_TEXT])


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return text if isinstance(text, str) else ""
