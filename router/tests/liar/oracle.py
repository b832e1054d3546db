"""Determines what is true of a request from the engines' actions and the client's answer, without the router's code. If
an answer contradicts itself, for example by continuing after its end, several results are true.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from router.tests.liar import plans
from router.tests.liar.client import Got
from router.tests.liar.engines import Attempt
from router.tests.liar.plans import CHUNKED, ERRORS, MESSAGES, RESPONSES, Plan

BEFORE, AFTER, CLIENTS, ALIKE = "failed_before_content", "failed_after_content", "client_error", "failed_alike"
OF_STATUS = {
    **dict.fromkeys((400, 401, 403, 404, 405, 413, 422, 501), CLIENTS),
    **dict.fromkeys((302, 408, 500, 502, 504), BEFORE),
    **dict.fromkeys((429, 503), "refused"),
}
ONES_WORD = (401, 403, 404, 405, 422, 501)  # statuses that a second engine has to confirm
DOUBTED = (400, 401, 403, 404, 405, 413, 422, 501)  # statuses for which another engine may be asked
OF_ERROR = {
    **dict.fromkeys(("error", "error_text", "error_named", "abort"), BEFORE),
    **{"error_client": CLIENTS, "error_busy": "refused"},
}
SEEN = 6  # events at the end of a stream that every reader must examine
LARGEST = 1_000_000_000  # largest token count that is accepted
WORD = "wört"  # part of every event with text


@dataclass
class Asked:
    """A request, the engines' actions on it, and its outcome."""

    number: int
    path: str
    document: dict[str, Any]
    key: str
    lie: Plan  # plan of the engines that lie
    is_poison: bool  # every engine follows the lie
    attempts: list[Attempt] = field(default_factory=list)
    got: Got = field(default_factory=Got)
    outcomes: list[dict[str, Any]] = field(default_factory=list)  # receipts
    charged: int | None = None  # tokens charged to a budget; None: its key has no budget

    @property
    def is_streamed(self) -> bool:
        return self.document.get("stream") in plans.TRUE

    @property
    def is_counted(self) -> bool:
        """Return whether the client asked for the usage of the stream."""
        return (self.document.get("stream_options") or {}).get("include_usage") in plans.TRUE


def _content_kinds(path: str) -> set[str]:
    kinds = {"text", "thought", "tool", "decoy", "long", "garbage"}
    return kinds | ({"usage"} if path == MESSAGES else {"finish"})


def results(attempt: Attempt) -> set[str]:
    """Return the results that are true of an attempt."""
    plan = attempt.plan
    if plan.status != 200:
        known = {OF_STATUS[plan.status]} | ({BEFORE} if plan.status in DOUBTED else set())
        return known if attempt.is_whole else {BEFORE} if not _may_be_whole(attempt) else known | {BEFORE}
    if not attempt.streams:
        of = _of_whole(attempt)
        return of - {"served"} | {BEFORE, CLIENTS} if "served" in of and is_whole_instead(attempt) else of
    of = _of_stream(attempt)
    return of if attempt.asks_stream else of - {"served", AFTER} | {BEFORE}  # a stream that was not requested


def is_whole_instead(attempt: Attempt) -> bool:
    """Return whether the engine gave a whole answer although a stream was requested."""
    return attempt.asks_stream and not attempt.streams and attempt.path in plans.STREAMED


def _may_be_whole(attempt: Attempt) -> bool:
    """Return whether an answer that was cut off may have ended properly according to HTTP."""
    if attempt.state in ("left", "holds"):
        return True
    if attempt.plan.framing == "close":
        return attempt.plan.at >= 0  # the end of the connection ends the answer, even right after the head
    return attempt.plan.framing == "length" and len(attempt.sent) == 2


def _of_whole(attempt: Attempt) -> set[str]:
    if not attempt.is_whole and len(attempt.sent) < 2:  # half of a JSON value is no answer
        return {BEFORE}
    told = _of_whole_body(attempt)
    return told if attempt.is_whole else told | {BEFORE} if _may_be_whole(attempt) else {BEFORE}


def _of_whole_body(attempt: Attempt) -> set[str]:
    kind = plans.failing(attempt.path, attempt.plan)
    if not kind:
        return {"served"}
    if kind == "abort" and attempt.path == MESSAGES:
        return {BEFORE}
    return _of_first_error(kind)


def _of_first_error(kind: str) -> set[str]:
    """Return what an error in place of content may mean; an engine that rejects every request is not believed."""
    known = OF_ERROR.get(kind, BEFORE)
    return {known, BEFORE} if known == CLIENTS else {known}


def _of_stream(attempt: Attempt) -> set[str]:
    content = _content_kinds(attempt.path)
    telling = [kind for kind in attempt.sent if kind in content or kind in OF_ERROR or kind == "end"]
    if attempt.state in ("left", "holds") or (attempt.plan.end == "resets" and attempt.state == "broken"):
        # The bytes sent may have been lost, or not been read
        served = {"served"} if "end" in telling or "finish" in telling else set()
        return {BEFORE, AFTER, *served, *(OF_ERROR[kind] for kind in telling if kind in OF_ERROR)}
    if not telling:
        return {BEFORE}
    if telling[0] == "garbage":
        return {BEFORE}
    if telling[0] in OF_ERROR:
        return _of_first_error(telling[0])
    if telling[0] == "end":
        return {"served", BEFORE, AFTER}
    ends = attempt.is_whole or attempt.plan.framing == "close"
    return _of_end(attempt, content, ends=ends)


def _of_end(attempt: Attempt, content: set[str], *, ends: bool) -> set[str]:
    """Return the possible meanings of the end of a stream with content. `ends` is whether it ended according to
    HTTP."""
    sent = [kind for kind in attempt.sent if kind != "ping" or attempt.path == MESSAGES]
    errors = [place for place, kind in enumerate(sent) if kind in OF_ERROR]
    if errors:
        told = {AFTER if OF_ERROR[sent[place]] != CLIENTS else CLIENTS for place in errors}
        after = sent[errors[-1] + 1 :]
        contradicts = set(after) & content or (attempt.path == RESPONSES and "end" in after)
        is_last = not contradicts and len(after) < SEEN and len(errors) == 1
        return told if is_last and ends else told | {"served", AFTER}
    if "end" in sent:
        goes_on = set(sent[sent.index("end") + 1 :]) & (content | {"begin"})
        return {"served"} if ends and not goes_on and "garbage" not in sent else {"served", AFTER}
    may_end = attempt.path in CHUNKED and "finish" in sent and "usage" in sent
    return {"served", AFTER} if may_end else {AFTER}


# Tokens


def tokens(attempt: Attempt) -> tuple[int | None, int | None]:
    """Return the prompt's and the answer's tokens that the engine reported in the right fields."""
    told = attempt.plan.usages
    if not attempt.streams:
        return _told(told[0]) if attempt.plan.status == 200 else (None, None)
    values = iter(told)
    now, ours = told[0], []
    for kind in attempt.plan.events if attempt.is_whole else attempt.sent:
        if kind in ("usage", "begin", "end"):
            now = next(values, now)
        if kind in _telling(attempt.path):
            ours.append((kind, now))
    if attempt.path == MESSAGES:
        return _of_messages(ours)
    return _told(ours[-1][1]) if ours else (None, None)


def _telling(path: str) -> tuple[str, ...]:
    return ("begin", "usage") if path == MESSAGES else ("end",) if path == RESPONSES else ("usage",)


def _of_messages(ours: list[tuple[str, Any]]) -> tuple[int | None, int | None]:
    """Return the prompt's tokens from the beginning and the answer's from the end."""
    prompt = output = None
    for kind, told in ours[:1] + ours[-1:]:
        parts = (_count(told[0]), None) if kind == "begin" else (None, _count(told[1]))
        prompt, output = (new if new is not None else old for new, old in zip(parts, (prompt, output), strict=True))
    return prompt, output


def _told(usage: plans.Usage) -> tuple[int | None, int | None]:
    return _count(usage[0]), _count(usage[1])


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else None


# The whole request


def judge(asked: Asked) -> None:
    """Raise AssertionError for any false part of the request's outcome."""
    assert len(asked.outcomes) == 1, f"{len(asked.outcomes)} outcomes of one request"
    told, got = asked.outcomes[0], asked.got
    assert not got.problem, f"no valid HTTP: {got.problem}"
    for place, attempt in enumerate(told["attempts"]):
        _judge_attempt(asked, attempt, is_last=place == len(told["attempts"]) - 1)
    _judge_fault(asked, told)
    if not got.has_left:
        judge_client(asked, told["result"])
    if told["result"] == "served" and not got.has_left:
        said = tokens(_log(asked, told["attempts"][-1]["instance"]))
        assert (told["actual_prompt_tokens"], told["output_tokens"]) == said, "tokens are not those of the engine"


def _logs(asked: Asked, instance: str) -> list[Attempt]:
    return [attempt for attempt in asked.attempts if attempt.engine == instance]


def _log(asked: Asked, instance: str) -> Attempt:
    return _logs(asked, instance)[-1]


def _judge_attempt(asked: Asked, attempt: dict[str, Any], *, is_last: bool) -> None:
    if asked.got.has_left and is_last and not _logs(asked, attempt["instance"]):
        assert attempt["result"] == "cancelled", f"{attempt['instance']}, which read no request: {attempt['result']}"
        return
    true = results(_log(asked, attempt["instance"]))
    if is_last:
        true |= {"cancelled"} if asked.got.has_left else set()
        true |= {ALIKE} if len(_failing(asked)) > 1 and BEFORE in true else set()
    else:
        true -= {"served", AFTER}
    assert attempt["result"] in true, f"{attempt['instance']}: {attempt['result']}, where {sorted(true)} is true"


def _failing(asked: Asked) -> set[str]:
    """Return the engines that may have failed before any content."""
    return {attempt.engine for attempt in asked.attempts if BEFORE in results(attempt)}


def _judge_fault(asked: Asked, told: dict[str, Any]) -> None:
    """Check that the fault lies with whoever caused it, and that the result is that of the last attempt."""
    result, attempts = told["result"], told["attempts"]
    assert result != "router_failed", told["error"]
    if not attempts:
        assert result == "refused" or asked.got.has_left, f"{result} without an attempt: {told['error']}"
        return
    last = attempts[-1]["result"]
    died = [place for place, tried in enumerate(attempts) if any(map(_died, _logs(asked, tried["instance"])[-1:]))]
    after = [tried for tried in attempts[died[0] + 1 :] if not _had_nothing(asked, tried)] if died else []
    assert len(after) <= 1, f"it ended {attempts[died[0]]['instance']}, and was sent to {len(after)} others"
    is_full = bool(died) and (last, result) == ("refused", BEFORE)
    assert result == last or (last, result) in ((BEFORE, ALIKE), (BEFORE, CLIENTS)) or is_full or asked.got.has_left, (
        f"{result}, where the last attempt is {last}"
    )


def _had_nothing(asked: Asked, tried: dict[str, Any]) -> bool:
    """Return whether the engine refused the request unread, because it was full or required a key."""
    return tried["result"] == "refused" or any(log.plan.status == 401 for log in _logs(asked, tried["instance"])[-1:])


def _died(attempt: Attempt) -> bool:
    """Return whether the engine closed the connection before it sent anything."""
    return attempt.state == "broken" and not attempt.sent and attempt.plan.framing != "close"


def judge_charge(asked: Asked) -> None:
    """Check that a budget is charged for the computed tokens, as reported by the engine or counted from its events."""
    told, charged = asked.outcomes[0], asked.charged
    assert charged is not None
    prompt, output = told["actual_prompt_tokens"], told["output_tokens"]
    least = sum(WORD in json.dumps(payload, ensure_ascii=False) for payload in asked.got.payloads)
    if not told["attempts"]:
        assert charged == 0, f"{charged} for a request that no engine had"
    elif told["result"] == "served" and prompt is not None and (output or not asked.is_streamed):
        assert charged == prompt + (output or 0), f"{charged} for {prompt} and {output} tokens"
    elif told["result"] == "served" and output:
        assert charged >= output, f"{charged} for {output} tokens"
    elif told["result"] in ("served", AFTER) or (told["result"] == "cancelled" and least):
        assert charged >= max(prompt is None, (prompt or 0) + least), f"{charged} for {prompt} and {least} events"
    elif told["result"] == BEFORE and not asked.got.body:
        assert charged == 0, f"{charged} for nothing"


def judge_client(asked: Asked, result: str) -> None:
    got = asked.got
    assert got.is_over or result in (AFTER, BEFORE), "the answer did not end"
    if got.status != 200:
        assert got.status >= 400
        assert result != "served", f"{got.status} is no service"
        error = got.body
        assert b'"error"' in error or any(attempt.plan.status == got.status for attempt in asked.attempts), error
    elif got.streams or asked.is_streamed:
        assert got.streams, "a stream was asked for"
        _judge_stream(asked, result)
    elif got.is_over:
        assert result == "served", f"the client got a whole answer, which is {result}"
        assert isinstance(json.loads(got.body), dict), "the client got no JSON"


def _judge_stream(asked: Asked, result: str) -> None:
    got, payloads = asked.got, asked.got.payloads
    tells = any(_is_error(payload) for payload in payloads)
    if result == "served":
        assert any(_is_end(payload) for payload in payloads), "a stream without an end is no service"
        if _log(asked, asked.outcomes[0]["attempts"][-1]["instance"]).plan is plans.GOOD and asked.path in CHUNKED:
            counted = any(isinstance(payload, dict) and payload.get("choices") == [] for payload in payloads)
            assert counted == asked.is_counted, "the client has a usage only if it asked for one"
    else:
        assert tells or not got.is_over, f"the client was not told of {result}"


def _is_error(payload: Any) -> bool:
    if not isinstance(payload, dict):
        return payload != "[DONE]"  # a value that is not an object is not an event of the API
    aborted = any(choice.get("finish_reason") == "abort" for choice in payload.get("choices", ()))
    return aborted or "error" in payload or payload.get("type") in ("error", "response.failed")


def _is_end(payload: Any) -> bool:
    if payload == "[DONE]":
        return True
    if not isinstance(payload, dict):
        return False
    finished = any(choice.get("finish_reason") for choice in payload.get("choices", ()))
    return finished or payload.get("type") in ("message_stop", "response.completed")


def _is_doubtful(attempt: Attempt) -> bool:
    return attempt.plan.status in ONES_WORD or (attempt.plan.status == 200 and is_whole_instead(attempt))


def hurts(asked: Asked, *, may_ask: bool) -> str:
    """Return why an honest request was not served although a good engine was there; empty if it had to be served.
    `may_ask` is True if every good engine accepts requests.
    """
    told = asked.outcomes[0]
    if told["result"] == "served" or asked.is_poison or asked.got.has_left:
        return ""
    if not told["attempts"]:
        return (
            "" if told["code"] in ("insufficient_quota", "rate_limit_exceeded") else f"it was refused: {told['error']}"
        )
    lies = [attempt for attempt in asked.attempts if attempt.plan is not plans.GOOD]
    true = results(lies[-1]) if lies else set()
    if len({attempt.engine for attempt in lies}) > 1:  # two engines failed alike, or one was tried again
        return ""
    if may_ask and told["result"] == CLIENTS and lies and _is_doubtful(lies[-1]):
        return "one engine alone refused it"
    if told["result"] in (AFTER, CLIENTS) and told["result"] in true:
        return ""
    return f"it came to {told['result']}: {told['error']}"


__all__ = ["ERRORS", "Asked", "hurts", "judge", "judge_charge", "judge_client", "results", "tokens"]
