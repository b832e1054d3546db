"""Each mutation removes one fix; the machine must detect the fault that the fix prevents.

Three mutations are not listed because 600 programs did not detect them: counting an engine's 400 as its failure, since
engines that answer alike are forgiven; taking an event of unknown kind for content
(router/tests/contract/test_answers.py); and counting events on top of the output tokens that a message begins with
(router/tests/test_limits.py). Other tests hold what the machine does not check: times to the first content, stored
responses, engines' keys, ids of both halves, spliced tokens.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from router.contract.answer import answers, verdict
from router.contract.answer.said import Ended, Ending
from router.contract.values import lax
from router.limits import charge
from router.pool.health import failure_attribution
from router.pool.health.progress import Progress
from router.request import fault
from router.request.offload import Offload
from router.request.outcome import Outcome
from router.serving.answer import relay
from router.upstream.answer import beginning, usage
from router.upstream.breaker import Breaker

TakeOut = Callable[[pytest.MonkeyPatch], None]


def first_events_not_read(patch: pytest.MonkeyPatch) -> None:
    """An error in place of the first content counts as content."""
    patch.setattr(beginning.answers, "sign", lambda data: ("content", None))


def first_bytes_are_content(patch: pytest.MonkeyPatch) -> None:
    """A stream is passed on as soon as its first bytes arrive."""

    async def hold(connection: Any, beginning: Any, body: bytes) -> bytes:
        return body

    patch.setattr(relay, "_hold", hold)


def last_events_not_read(patch: pytest.MonkeyPatch) -> None:
    """Errors at the end of a stream are ignored."""

    def ending(stream: bytes) -> Ending:
        found = real(stream)
        return Ending(None, found.is_whole, found.finishes, found.usage)

    real = answers.ending
    patch.setattr(answers, "ending", ending)


def only_the_last_event_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answers, "LAST", 1)


def cut_streams_are_whole(patch: pytest.MonkeyPatch) -> None:
    """A stream that ends properly by HTTP counts as complete without its last event."""
    patch.setattr(Ending, "is_over", True)


def errors_of_whole_answers_not_read(patch: pytest.MonkeyPatch) -> None:
    """Status 200 is a success, whatever the answer holds."""
    patch.setattr(relay.answers, "error_of", lambda event, data=b"": None)


def named_errors_not_read(patch: pytest.MonkeyPatch) -> None:
    """An event counts as an error by its data alone."""
    patch.setattr(answers, "_NAMED_ERROR", re.compile(rb"(?!)"))


def remarks_are_answers(patch: pytest.MonkeyPatch) -> None:
    """A JSON object of status 200 is an answer, whatever it holds."""
    patch.setattr(answers, "_holds", lambda value, api_path: True)


def broken_json_is_an_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answers, "_wrong_value", lambda data, api_path: None)


def unasked_streams_passed_on(patch: pytest.MonkeyPatch) -> None:
    """A client that asked for a whole answer gets a stream of events."""
    patch.setattr(relay, "_unasked", lambda answer, api_path: answer)


def whole_answers_in_place_of_streams(patch: pytest.MonkeyPatch) -> None:
    """A client that reads events gets none."""
    patch.setattr(relay, "_unstreamed", lambda answer, api_path: answer)


def redirects_passed_on(patch: pytest.MonkeyPatch) -> None:
    """A redirect is passed on, so that the client is sent to another address."""

    def begin(connection: Any, api_path: str, **asked: bool) -> Any:
        if 300 <= connection.status < 400:
            return relay.BegunAnswer(connection, connection.read_now(), streams=False)
        return real(connection, api_path, **asked)

    real = relay.begin
    patch.setattr(relay, "begin", begin)


def one_word_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A refusal by a single engine counts as the client's mistake."""
    patch.setattr(verdict, "DOUBTFUL", frozenset())


def never_doubted(patch: pytest.MonkeyPatch) -> None:
    """An engine may reject every request."""
    patch.setattr(Breaker, "is_doubted", False)


def nobody_forgiven(patch: pytest.MonkeyPatch) -> None:
    """Failures of poisoned requests keep counting against engines."""
    patch.setattr(fault, "forgive", lambda call, alone="": False)


def all_forgiven(patch: pytest.MonkeyPatch) -> None:
    """Equal failures are always the fault of the requests, however many there are."""
    patch.setattr("router.upstream.breaker.MOST_DISPUTED", 10**6)


def tried_on_every_engine(patch: pytest.MonkeyPatch) -> None:
    """A request that failed alike on two engines is tried on the next."""
    patch.setattr(fault, "_are_alike", lambda call: False)


def may_end_one_engine_after_another(patch: pytest.MonkeyPatch) -> None:
    """A request is retried like any other although an engine died during it."""
    patch.setattr(fault, "is_spent", fault._are_alike)


def last_breaker_opens(patch: pytest.MonkeyPatch) -> None:
    """One key may shut out every instance."""

    def failed(breaker: Breaker, now: float, failures: int, tenant: str = "", spares: object = None) -> None:
        real(breaker, now, failures, tenant, None)

    real = Breaker.failed
    patch.setattr(Breaker, "failed", failed)


def one_key_shuts_several_out(patch: pytest.MonkeyPatch) -> None:
    """Failures of one key shut out all instances but the last."""
    spares = failure_attribution._is_last
    patch.setattr(failure_attribution, "_spares", lambda pool, endpoint, tenant, several: spares(pool, endpoint))


def one_key_keeps_the_last_one_out(patch: pytest.MonkeyPatch) -> None:
    """If the key whose failures shut out an instance tries it again, the instance stays shut to all others for as long
    again."""

    def failed(breaker: Breaker, now: float, failures: int, tenant: str = "", spares: Any = None) -> None:
        real(breaker, now, failures, tenant, spares)
        if breaker.opened_at is not None:
            breaker.opened_at = now

    real = Breaker.failed
    patch.setattr(Breaker, "failed", failed)


def not_reconsidered(patch: pytest.MonkeyPatch) -> None:
    """Engines that failed for one key stay shut to others even if no other is left."""
    patch.setattr(failure_attribution, "_reconsider", lambda pool, failing, tenant: None)


def probes_never_end(patch: pytest.MonkeyPatch) -> None:
    """A request that probes an engine keeps its breaker half open after the request ends."""
    patch.setattr(Breaker, "end", lambda breaker, probe: None)


def only_true_is_true(patch: pytest.MonkeyPatch) -> None:
    """A request that asks for a stream with 1 counts as not streamed."""
    patch.setattr(lax, "is_true", lambda value: value is True)


def events_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A stream without usage is charged for its prompt only."""
    patch.setattr(charge, "streamed", lambda data, *, several: 0)


def usage_taken_from_anywhere(patch: pytest.MonkeyPatch) -> None:
    """The last part of an answer that looks like usage counts as usage."""

    def judge(answer: relay.BegunAnswer, kind: bytes, api_path: str) -> None:
        real(answer, kind, api_path)
        at = answer.body.rfind(b'"usage": ') + 9
        looks = usage.json_object(answer.body[at : answer.body.find(b"}", at) + 1])
        answer.ended = Ended(answer.error, is_whole=True, usage=looks)

    real = relay._judge_whole
    patch.setattr(relay, "_judge_whole", judge)


def any_number_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(usage, "_count", lambda raw, key: raw.get(key) if isinstance(raw, dict) else None)


def first_usage_not_read(patch: pytest.MonkeyPatch) -> None:
    """The first part of a usage that a stream reports in two parts is ignored."""
    patch.setattr(usage, "combined", lambda first, last: last or first)


def any_usage_is_the_last(patch: pytest.MonkeyPatch) -> None:
    """The output tokens stated at the beginning of a message count for the answer although it was cut off."""

    def usage_of(event: answers.Said) -> Any:
        return event.message.get("usage") if isinstance(event.message, dict) else real(event)

    def output_tokens(outcome: Outcome) -> int:
        reported = outcome.usage.output_tokens if outcome.usage is not None else None
        return outcome.streamed_tokens if reported is None else reported

    real = answers.usage_of
    patch.setattr(answers, "usage_of", usage_of)
    patch.setattr(Outcome, "output_tokens", property(output_tokens))


def usage_left_in(patch: pytest.MonkeyPatch) -> None:
    """A client gets the usage chunk that only the router asked for."""
    patch.setattr(usage, "_is_usage_chunk", lambda event: False)


def usage_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("router.tokenize.prompt.with_usage", lambda body, document: body)


def never_stalled(patch: pytest.MonkeyPatch) -> None:
    """An engine whose health page answers is healthy."""
    patch.setattr(Progress, "judge", lambda progress, *limits, **holds: False)


def stalled_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "_return", lambda progress: None)


def answers_to_probes_are_enough(patch: pytest.MonkeyPatch) -> None:
    """An engine that answers the router's own requests serves its clients."""
    patch.setattr(Progress, "probed", Progress.came)


def a_page_is_a_sign_of_life(patch: pytest.MonkeyPatch) -> None:
    """Whatever its page says, an engine makes progress."""

    def read(progress: Progress, *said: Any, **held: Any) -> None:
        real(progress, *said, **held)
        progress.came()

    real = Progress.read
    patch.setattr(Progress, "read", read)


def prefills_stay_the_requests_fault(patch: pytest.MonkeyPatch) -> None:
    """A prefill failure stays the request's fault although another engine has computed the same prompt."""
    patch.setattr(fault, "prefilled", lambda call: None)


def failed_prefills_get_it_again(patch: pytest.MonkeyPatch) -> None:
    """After a decoder's failure, a prompt is sent again to the engine that failed to compute it."""

    def prefilled(call: Any) -> None:
        real(call)
        if call.outcome.offload is not None:
            call.outcome.offload.failed = {}

    real = fault.prefilled
    patch.setattr(fault, "prefilled", prefilled)


def prompts_stay_awaited(patch: pytest.MonkeyPatch) -> None:
    """A decoder counts a prompt that it waits for as pending forever."""
    patch.setattr(Offload, "computed", lambda offload: None)


OFFLOADS: dict[str, TakeOut] = {
    each.__name__: each
    for each in (prefills_stay_the_requests_fault, failed_prefills_get_it_again, prompts_stay_awaited)
}

STALLS: dict[str, TakeOut] = {
    each.__name__: each
    for each in (never_stalled, stalled_for_ever, a_page_is_a_sign_of_life, answers_to_probes_are_enough)
}


MUTATIONS: dict[str, TakeOut] = {
    each.__name__: each
    for each in (
        first_events_not_read,
        first_bytes_are_content,
        last_events_not_read,
        only_the_last_event_read,
        cut_streams_are_whole,
        errors_of_whole_answers_not_read,
        named_errors_not_read,
        remarks_are_answers,
        broken_json_is_an_answer,
        unasked_streams_passed_on,
        whole_answers_in_place_of_streams,
        redirects_passed_on,
        one_word_is_enough,
        never_doubted,
        nobody_forgiven,
        all_forgiven,
        tried_on_every_engine,
        may_end_one_engine_after_another,
        last_breaker_opens,
        one_key_shuts_several_out,
        one_key_keeps_the_last_one_out,
        not_reconsidered,
        probes_never_end,
        only_true_is_true,
        events_not_counted,
        usage_taken_from_anywhere,
        any_number_is_believed,
        first_usage_not_read,
        any_usage_is_the_last,
        usage_left_in,
        usage_not_asked_for,
    )
}

ALL = MUTATIONS | OFFLOADS | STALLS

# Detected only after hundreds of programs, and therefore tried only in longer runs.
RARE = frozenset(
    one.__name__
    for one in (
        any_number_is_believed,
        events_not_counted,
        named_errors_not_read,
        one_key_keeps_the_last_one_out,
        only_the_last_event_read,
    )
)
