"""Small cases that can be computed by hand."""

from itertools import pairwise

import pytest

from controlplane.evidence.twin.simulation.simulate import OFFLOADS
from controlplane.evidence.twin.simulation.tests.builders import LAW, api_s, asks, fleet, play, policy
from fleet.engine.engine_model import TransferModel
from fleet.engine.request import run_s
from fleet.engine.scheduler import Limits


def test_a_single_request_waits_for_the_api_and_its_prefill() -> None:
    (one,) = play([asks(0, 2.0, tokens=1_000, output=1)]).requests
    assert one.sent_s == 2.0
    assert one.ttft_s == pytest.approx(api_s(1_000) + LAW.prefill_s(1_000))
    assert one.e2e_s == one.ttft_s
    assert one.tpot_s is None


def test_an_answer_takes_one_decode_step_per_token() -> None:
    (one,) = play([asks(0, tokens=1_000, output=101)]).requests
    steps = run_s(100, LAW.step_s(1, 0.0, 1_001, 1), LAW.kv_s_per_token)
    assert one.tpot_s == pytest.approx(steps / 100)
    assert one.e2e_s is not None
    assert one.ttft_s is not None
    assert one.e2e_s - one.ttft_s == pytest.approx(steps)


def test_a_long_prompt_is_computed_in_chunks() -> None:
    (one,) = play([asks(0, tokens=20_000, output=1)]).requests
    assert one.ttft_s == pytest.approx(api_s(20_000) + LAW.prefill_s(20_000, chunk=8_192))


def test_the_second_of_two_requests_waits_for_the_step_of_the_first() -> None:
    first, second = play(
        [asks(0, tokens=8_000, output=1), asks(1, 0.05, tokens=8_000, output=1)], fleet=fleet(1)
    ).requests
    assert first.ttft_s == pytest.approx(api_s(8_000) + LAW.prefill_s(8_000))
    assert second.ttft_s == pytest.approx(api_s(8_000) + 2 * LAW.prefill_s(8_000) - 0.05)


def test_a_prompt_that_was_computed_before_is_found_in_the_cache() -> None:
    requests = [
        asks(0, tokens=6_400, output=1, family=1, shared=6_400),
        asks(1, 5.0, tokens=6_464, output=1, family=1, shared=6_400),
    ]
    outcome = play(requests, policy=policy("cache_aware"))
    assert outcome.requests[0].instance == outcome.requests[1].instance
    assert outcome.requests[1].cached_tokens == 6_400
    assert outcome.requests[1].ttft_s == pytest.approx(api_s(6_464) + LAW.prefill_s(64, cached_tokens=6_400))


def test_a_session_stays_where_it_was() -> None:
    requests = [asks(at, at * 5.0, session="a", output=5) for at in range(6)]
    assert len({one.instance for one in play(requests, policy=policy("session_sticky")).requests}) == 1


def test_recorded_random_numbers_choose_between_idle_engines() -> None:
    requests = [asks(0), asks(1, 60.0), asks(2, 120.0)]
    played = play(requests, policy=policy("priced"), draws={0: 0.1, 1: 0.9, 2: 0.1}).requests
    assert [one.instance for one in played] == ["chat-0", "chat-1", "chat-0"]


def test_a_session_is_forgotten_after_its_time_to_live() -> None:
    """A bound session goes to the instance with the fewest requests; a forgotten one goes where its hash points."""
    requests = [asks(0, session="a"), asks(1, 100.0, session="a")]
    rules = {ttl: play(requests, policy=policy("session_sticky", affinity__ttl_s=ttl)) for ttl in (99, 200)}
    assert rules[200].requests[0].instance == rules[200].requests[1].instance
    assert rules[99].requests[0].instance == rules[99].requests[1].instance == rules[200].requests[0].instance


def test_a_conversation_without_a_session_id_is_recognised_by_its_prompt() -> None:
    requests = [
        asks(0, tokens=640, family=1, shared=640),
        asks(1, 1.0, tokens=640, family=2, shared=640),
        asks(2, 2.0, tokens=1_280, family=1, shared=640),
    ]
    first, _, third = play(requests, policy=policy("session_sticky")).requests
    assert third.instance == first.instance


def test_blocks_evicted_from_the_cache_are_computed_again() -> None:
    """There is room for 6,400 tokens: the second prompt evicts the end of the first, whose head stays."""
    requests = [asks(at, at * 5.0, tokens=5_120, output=1, family=at % 2 + 1, shared=5_120) for at in range(3)]
    outcome = play(requests, fleet=fleet(1, kv_blocks=400))
    assert [one.cached_tokens for one in outcome.requests] == [0, 0, 1_280]
    roomy = play(requests, fleet=fleet(1, kv_blocks=4_000))
    assert roomy.requests[2].cached_tokens == 5_056  # the last block is computed for its last token


def test_requests_wait_in_the_engine_while_all_its_slots_are_taken() -> None:
    requests = [asks(at, 0.0, tokens=64, output=100) for at in range(3)]
    outcome = play(requests, fleet=fleet(1, limits=Limits(max_num_seqs=1)))
    ends = [one.e2e_s or 0.0 for one in outcome.requests]
    assert ends[1] == pytest.approx(2 * ends[0] - api_s(64))
    assert ends[2] == pytest.approx(3 * ends[0] - 2 * api_s(64))


class TestAdmission:
    """One instance that runs one request at a time."""

    ONE = fleet(1)

    def test_a_request_that_finds_the_queue_full_is_refused_at_once(self) -> None:
        full = policy(admission__max_inflight_per_instance=1, admission__max_queue_warm=1)
        outcome = play([asks(at, at * 0.001, output=200) for at in range(3)], fleet=self.ONE, policy=full)
        assert [one.outcome for one in outcome.requests] == ["ok", "ok", "refused"]
        refused = outcome.requests[2]
        assert (refused.code, refused.instance, refused.ttft_s, refused.e2e_s) == ("saturated", "", None, 0.0)

    def test_a_waiting_request_is_sent_when_the_previous_request_ends(self) -> None:
        narrow = policy(admission__max_inflight_per_instance=1)
        first, second = play([asks(at, output=200) for at in range(2)], fleet=self.ONE, policy=narrow).requests
        assert second.queued_s == first.e2e_s
        assert second.ttft_s == pytest.approx((first.e2e_s or 0.0) + (first.ttft_s or 0.0))

    def test_a_request_that_waits_too_long_is_refused(self) -> None:
        narrow = policy(admission__max_inflight_per_instance=1, admission__max_wait_warm_s=1.5)
        outcome = play([asks(at, output=2_000) for at in range(2)], fleet=self.ONE, policy=narrow)
        refused = outcome.requests[1]
        assert (refused.outcome, refused.code, refused.queued_s) == ("refused", "queue_timeout", 1.5)

    def test_a_strategy_can_refuse_requests(self) -> None:
        """The strategy refuses once it knows how fast prompts are computed; a request with nothing ahead of it is never
        refused."""
        strict = policy("mooncake_conductor", strategy__ttft_limit_s=0.1)
        requests = [asks(at, tokens=8_000, at_s=at_s) for at, at_s in enumerate((0.0, 5.0, 5.1))]
        outcome = play(requests, fleet=self.ONE, policy=strict)
        assert [one.code for one in outcome.requests] == ["", "", "over_ttft_limit"]


def test_a_request_too_large_for_every_engine_is_a_client_error() -> None:
    for small in (fleet(1, kv_blocks=10), fleet(1, window=1_000)):
        (one,) = play([asks(0, tokens=1_000, output=10)], fleet=small).requests
        assert (one.outcome, one.code, one.ttft_s) == ("client_error", "too_long", None)


def test_in_a_closed_loop_a_session_thinks_after_each_answer() -> None:
    turns = [asks(at, session="a", think_s=3.0) for at in range(3)]
    requests = play(turns, pacing="closed_loop").requests
    for before, after in pairwise(requests):
        assert after.sent_s == pytest.approx(before.sent_s + (before.e2e_s or 0.0) + 3.0)


def test_in_a_closed_loop_nothing_is_sent_after_the_end() -> None:
    turns = [asks(at, session="a", think_s=3.0) for at in range(9)]
    requests = play(turns, pacing="closed_loop", duration_s=7.0).requests
    assert [one.index for one in requests] == [0, 1, 2]


def test_in_an_open_loop_no_request_waits_for_an_answer() -> None:
    requests = play([asks(at, at * 0.1, session="a", think_s=9.0, output=100) for at in range(3)]).requests
    assert [one.sent_s for one in requests] == [0.0, 0.1, 0.2]


def test_the_caller_receives_the_progress_and_can_stop_the_simulation() -> None:
    class Stopped(Exception):
        pass

    heard = []

    def listen(done: int, total: int) -> None:
        heard.append((done, total))
        if done == 200:
            raise Stopped

    with pytest.raises(Stopped):
        play([asks(at, at * 0.1) for at in range(350)], on_progress=listen)
    assert heard == [(100, 350), (200, 350)]


def test_the_kv_usage_of_each_instance_is_reported_once_a_second() -> None:
    outcome = play([asks(0, 1.5, tokens=4_000, output=300)], fleet=fleet(2))
    (taken,) = {one.instance for one in outcome.requests}
    use = outcome.instances[taken]
    assert use.kv_usage[:2] == (0.0, 0.0)
    assert use.kv_usage[2] == pytest.approx(4_032 / 400_000, rel=0.05)
    assert use.running[2] == 1
    (other,) = set(outcome.instances) - {taken}
    assert set(outcome.instances[other].kv_usage) == {0.0}
    assert outcome.virtual_s == pytest.approx(1.5 + (outcome.requests[0].e2e_s or 0.0))


class TestOffload:
    """A heavy prompt is computed on another instance, its KV is transferred, and the decoder is the instance that
    the policy chose."""

    OFFLOAD = policy("adaptive_offload", classes__heavy_new_tokens=6_000)
    JOINED = fleet(2, connector="nixl", transfers=TransferModel(bytes_per_token=131_072))
    MOVED_S = 5e-3 + 8_000 * 131_072 / 9.7e9

    def test_the_first_token_waits_for_prefill_and_transfer(self) -> None:
        (one,) = play([asks(0, tokens=8_000, output=2)], fleet=self.JOINED, policy=self.OFFLOAD).requests
        prefill = api_s(8_000) + LAW.prefill_s(8_000)
        assert one.ttft_s == pytest.approx(prefill + api_s(8_000) + self.MOVED_S + LAW.step_s(1, 7_999.5, 0, 0))
        assert one.request_class == "heavy"

    def test_blocks_that_the_decoder_holds_are_not_transferred(self) -> None:
        asked = [asks(at, at * 5.0, tokens=8_000 + 8_000 * at, family=1, shared=8_000, session="a") for at in (0, 1)]
        first, second = play(asked, fleet=self.JOINED, policy=self.OFFLOAD).requests
        assert second.instance == first.instance
        assert second.cached_tokens == 15_999

    def test_every_block_is_free_in_the_end(self) -> None:
        asked = [asks(at, at * 0.1, tokens=7_000 + 100 * at, output=30) for at in range(40)]
        outcome = play([*asked, asks(40, 60.0)], fleet=self.JOINED, policy=self.OFFLOAD)
        assert {one.outcome for one in outcome.requests} == {"ok"}
        assert max(max(use.kv_usage) for use in outcome.instances.values()) > 0.05
        assert all(use.kv_usage[59] == 0.0 for use in outcome.instances.values())

    def test_blocks_that_are_not_pulled_in_time_are_computed_again(self) -> None:
        brief = fleet(2, connector="nixl", transfers=TransferModel(bytes_per_token=131_072, hold_s=0.001))
        (one,) = play([asks(0, tokens=8_000, output=2)], fleet=brief, policy=self.OFFLOAD).requests
        assert one.cached_tokens == 0
        assert one.ttft_s == pytest.approx(2 * (api_s(8_000) + LAW.prefill_s(8_000)))

    def test_without_a_transfer_the_decoder_computes_the_prompt_and_the_receipt_says_so(self) -> None:
        (one,) = (outcome := play([asks(0, tokens=8_000)], fleet=fleet(2, connector="x"), policy=self.OFFLOAD)).requests
        assert one.ttft_s == pytest.approx(api_s(8_000) + LAW.prefill_s(8_000))
        assert outcome.not_modelled == (OFFLOADS,)
