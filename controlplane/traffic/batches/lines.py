"""The lines of a batch: checks of requests, and lines of results. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from router.contract.answer import answers, verdict
from router.contract.answer.said import AnswerError

MOST_LINES = 50_000
MOST_MODELS = 100  # models named in a batch; each has its own pace and reasons to wait
LONGEST_LINE = 8 * 1024 * 1024  # bytes
LONGEST_ID = 512  # characters of a custom_id
MOST_TOKENS = 1_000_000_000  # tokens per answer; a larger report shows a broken engine
MOST_FAULTS = 100  # most errors reported


# The meaning of an answer to a line, for the line's outcome and for the lines after it. router/contract judges answers
# for routers and batches in the same way: their status in verdict.py, their text in answers.py.
LONGEST_TEXT = 300  # characters in the text of a reason
Outcome = Literal["answered", "failed", "again", "later"]
# Outcomes by result; other results lead to another attempt
_OUTCOMES: dict[str, Outcome] = {"client_error": "failed", "failed_alike": "failed", "refused": "later"}


@dataclass(frozen=True, slots=True)
class LineAnswer:
    status: int
    request_id: str
    body: bytes
    retry_after_s: int | None = None
    # The router says that the request must not be repeated, because it may have crashed its engine
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why no line of a batch can be sent now."""

    code: str
    message: str


NO_ROUTER = Reason("no_router", "no router is live")


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of one answer. `again`: failed unless another attempt is left; `later`: refused for a reason that
    also holds for further lines."""

    outcome: Outcome
    document: Any
    error: dict[str, str] | None = None  # error inside an answer of status 200
    reason: Reason | None = None


def meaning(answer: LineAnswer, api_path: str) -> Meaning:
    document = document_of(answer.body)
    said = answers.said(answer.body) if answer.status == 200 else None
    fault = answers.wrong_with(said, answer.body, api_path) if answer.status == 200 else None
    if answer.status == 200 and fault is None:
        return Meaning("answered", document)
    result = _result_of(answer.status, document, fault)
    outcome = "failed" if result == "served" else _OUTCOMES.get(result, "failed" if answer.is_final else "again")
    error = {"code": "engine_error", "message": fault.message[:LONGEST_TEXT]} if fault is not None else None
    reason = _reason(answer.status, document) if outcome == "later" else None
    return Meaning(outcome, document, error, reason)


def _result_of(status: int, document: object, fault: AnswerError | None) -> verdict.Result:
    if fault is not None:
        return answers.result_of(fault, has_content=False)
    error = document.get("error") if isinstance(document, dict) else None
    return verdict.of_routers_answer(status, error.get("code") if isinstance(error, dict) else None)


def _reason(status: int, document: object) -> Reason:
    error = document.get("error") if isinstance(document, dict) else None
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    known = code if isinstance(code, str) and code else f"status_{status}"
    return Reason(known[:64], (message if isinstance(message, str) and message else f"status {status}")[:LONGEST_TEXT])


@dataclass(frozen=True, slots=True)
class Line:
    custom_id: str
    model: str  # name of the requested model
    start: int  # offset of the line in its file
    size: int
    fault: str = ""  # why the line is not sent, in a batch that an older version started


@dataclass(frozen=True, slots=True)
class Fault:
    code: str
    line: int | None  # 1, 2, 3, …
    message: str
    param: str | None

    def document(self) -> dict[str, Any]:
        return {"code": self.code, "line": self.line, "message": self.message, "param": self.param}


@dataclass(frozen=True, slots=True)
class Checked:
    lines: list[Line]
    faults: list[Fault]


class _Bad(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def check(raw: Iterable[bytes], api_path: str, *, has_begun: bool = False) -> Checked:
    """Check the lines of a file, each with its line end. With `has_begun`, rules that older versions did not have
    cannot fail the batch."""
    lines: list[Line] = []
    models: dict[str, str] = {}  # one string per model name, shared by all lines that name it
    faults: list[Fault] = []
    seen: set[str] = set()
    start = 0
    for number, one in enumerate(raw, 1):
        try:
            if one.strip():
                name, model, fault = _read(one, api_path, seen, has_begun)
                if model not in models and len(models) >= MOST_MODELS and not has_begun:
                    raise _Bad("too_many_models", f"a batch may name at most {MOST_MODELS} models", "body.model")
                lines.append(Line(name, models.setdefault(model, model), start, len(one), fault))
            if len(lines) > MOST_LINES:
                raise _Bad("too_many_lines", f"a batch may have at most {MOST_LINES:,} lines")
        except _Bad as error:
            faults.append(Fault(error.code, number, str(error), error.param))
            if len(faults) >= MOST_FAULTS or error.code.startswith("too_many_"):
                break
        start += len(one)
    if not lines and not faults:
        faults.append(Fault("empty_file", None, "the file has no lines", None))
    return Checked(lines, faults)


def _read(raw: bytes, api_path: str, seen: set[str], has_begun: bool) -> tuple[str, str, str]:
    """Return (custom_id, model, why the line is not sent). Raise _Bad."""
    if len(raw) > LONGEST_LINE:
        raise _Bad("line_too_long", f"a line may have at most {LONGEST_LINE:,} bytes")
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _Bad("invalid_json_line", f"this line is not JSON: {error}") from None
    if not isinstance(line, dict):
        raise _Bad("invalid_json_line", "a line must be a JSON object")
    name = line.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise _Bad("invalid_custom_id", f"must be text of 1 to {LONGEST_ID} characters", "custom_id")
    if name in seen:
        raise _Bad("duplicate_custom_id", f"{name[:60]!r} occurs twice", "custom_id")
    _check_request(line, api_path)
    fault = ""
    if api_path == "/v1/responses" and line["body"].get("background"):
        fault = "a batch waits for each answer: leave it out"
        if not has_begun:
            raise _Bad("invalid_request", fault, "body.background")
    seen.add(name)
    return name, line["body"]["model"], fault


def _check_request(line: dict[str, Any], api_path: str) -> None:
    if line.get("method", "POST") != "POST":
        raise _Bad("invalid_method", "must be POST", "method")
    if line.get("url") != api_path:
        raise _Bad("mismatched_endpoint", f"must be the endpoint of the batch, {api_path}", "url")
    body = line.get("body")
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise _Bad("invalid_request", "must be an object with a model", "body")
    if body.get("stream"):
        raise _Bad("invalid_request", "streams are not answered in batches", "body.stream")


def body_of(raw: bytes) -> bytes:
    return orjson.dumps(orjson.loads(raw)["body"])


def document_of(body: bytes) -> object:
    """Return the document of an answer: its JSON if possible, otherwise its text."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="replace")[:10_000]


def answered(line: tuple[str, int, str], status: int, request_id: str, document: object, error: object) -> bytes:
    """Return a line for the output file, or for the error file if there is an error or a status other than 200. `line`
    provides the name of the batch, the number of the line and its custom_id."""
    response = {"status_code": status, "request_id": request_id, "body": document}
    return _written(*line, response, error)


def without_answer(batch: str, number: int, custom_id: str, code: str, message: str) -> bytes:
    return _written(batch, number, custom_id, None, {"code": code, "message": message})


def _written(batch: str, number: int, custom_id: str, response: object, error: object) -> bytes:
    made = {"id": f"batch_req_{batch.removeprefix('batch_')}_{number}", "custom_id": custom_id}
    return orjson.dumps({**made, "response": response, "error": error}) + b"\n"


def written_of(raw: Iterable[bytes]) -> Iterator[tuple[str, object]]:
    """Yield (custom_id, body of the answer) of written lines."""
    for one in raw:
        line = orjson.loads(one)
        response = line.get("response")
        yield line["custom_id"], response["body"] if response else None


def usage_of(document: object) -> tuple[int, int]:
    """Return (input tokens, output tokens) of an answer; zeros if it does not report them."""
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return 0, 0
    given = usage.get("prompt_tokens", usage.get("input_tokens"))
    made = usage.get("completion_tokens", usage.get("output_tokens"))
    return _count(given), _count(made)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else 0
