"""An engine is stalled if it holds requests and produces no token for longer than ever before; a busy one is not."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pool.health.progress import (
    ASSUMED_TOKENS_PER_S,
    CONFIRM_S,
    KEPT_S,
    LEAST_S,
    SERVED,
    TRIAL_S,
    UNMOVED_READINGS,
    Progress,
    prefill_s,
)

AFTER_S, FACTOR = 45.0, 3.0
THEN_S = CONFIRM_S + 1  # longest time until a stall is confirmed, after the limit


def pass_s(
    progress: Progress, seconds: float, *, holds: bool = True, alive: bool = True, prompt_s: float = 0.0
) -> float | None:
    """Check once per second for the given number of seconds. Return the second in which the engine stalled."""
    stalled_at = None
    for second in range(1, int(seconds) + 1):
        if progress.look(1.0, holds=holds, alive=alive) and progress.judge(AFTER_S, FACTOR, prompt_s):
            stalled_at = stalled_at or float(second)
    return stalled_at


def token(progress: Progress) -> None:
    progress.came()
    pass_s(progress, 1)


@pytest.fixture
def proven() -> Progress:
    made = Progress()
    token(made)
    return made


def test_an_engine_without_requests_never_stalls(proven: Progress) -> None:
    assert pass_s(proven, 3600, holds=False) is None


def test_a_new_engine_has_the_time_that_the_policy_sets() -> None:
    assert pass_s(Progress(), 100) == AFTER_S + THEN_S


def test_an_engine_that_always_answered_at_once_has_the_shortest_limit(proven: Progress) -> None:
    assert pass_s(proven, 100) == LEAST_S + THEN_S


def test_a_probe_may_answer_before_its_engine_counts_as_stalled_however_short_the_limit(proven: Progress) -> None:
    looks = [proven.look(1.0, holds=True, alive=True) and proven.judge(5.0, FACTOR, 0.0) for _ in range(11)]
    assert (any(looks), proven.is_suspected) == (False, True)


def test_the_longest_silence_ended_by_a_token_times_the_factor_limits_the_next_one(proven: Progress) -> None:
    assert pass_s(proven, 9) is None
    token(proven)
    assert pass_s(proven, 100) == 9 * FACTOR + THEN_S


def test_a_first_request_that_compiles_does_not_raise_the_next_limit() -> None:
    progress = Progress()
    pass_s(progress, 40)
    token(progress)
    assert pass_s(progress, 100) == LEAST_S * FACTOR + THEN_S


def test_a_long_prompt_has_the_time_that_it_needs(proven: Progress) -> None:
    assert pass_s(proven, 590, prompt_s=200.0) is None
    assert pass_s(proven, 20, prompt_s=200.0) == 14


def test_a_silence_that_a_long_prompt_explains_does_not_raise_the_limit_of_short_ones(proven: Progress) -> None:
    pass_s(proven, 590, prompt_s=200.0)
    token(proven)
    assert pass_s(proven, 100, prompt_s=0.5) == LEAST_S + THEN_S


def test_one_hang_raises_the_limit_to_at_most_twice_its_value(proven: Progress) -> None:
    assert pass_s(proven, 600) == 14
    token(proven)
    assert pass_s(proven, 600) == 2 * LEAST_S * FACTOR + THEN_S


def test_old_maxima_are_forgotten(proven: Progress) -> None:
    pass_s(proven, 9)
    token(proven)
    pass_s(proven, 2 * KEPT_S, holds=False)
    assert pass_s(proven, 100) == LEAST_S + THEN_S


def test_a_token_ends_the_stall(proven: Progress) -> None:
    pass_s(proven, 60)
    assert proven.stalled == "stalled: no token for 14 s with requests (limit 10 s)"
    assert proven.refusal == proven.stalled
    token(proven)
    assert (proven.stalled, proven.refusal) == ("", "")


def test_requests_that_end_without_a_token_leave_the_silence_as_it_is(proven: Progress) -> None:
    for _ in range(3):
        pass_s(proven, 3)
        pass_s(proven, 100, holds=False)
    assert not proven.stalled
    assert pass_s(proven, 10) == 5


def test_an_engine_that_refuses_every_request_at_once_stalls_too(proven: Progress) -> None:
    stalled = []
    for second in range(30):
        proven.ended_without()
        if pass_s(proven, 1, holds=False):
            stalled.append(second)
    assert stalled == [13]


def test_a_single_refusal_is_not_silence(proven: Progress) -> None:
    for _ in range(30):
        proven.ended_without()
        pass_s(proven, 1, holds=False)
        token(proven)
        pass_s(proven, 60, holds=False)
    assert not proven.is_suspected


def test_an_engine_that_gets_no_requests_anyway_is_not_judged(proven: Progress) -> None:
    pass_s(proven, 9)
    pass_s(proven, 300, alive=False)
    assert pass_s(proven, 10) is None


@pytest.mark.parametrize("moved", [(8.0, 5.0, 0.0), (7.0, 6.0, 0.0), (7.0, 5.0, 1.0)])
def test_counters_that_move_are_progress(proven: Progress, moved: tuple[float, ...]) -> None:
    for _ in range(5):
        for totals in ((7.0, 5.0, 0.0), moved):
            proven.read(9, *totals)
            assert pass_s(proven, 8) is None


def test_counters_that_ignore_requests_are_a_stall_although_other_routers_sent_them(proven: Progress) -> None:
    stalled = []
    for second in range(30):
        proven.read(4, 7.0, 5.0, 0.0)
        if pass_s(proven, 1, holds=False):
            stalled.append(second)
    assert stalled == [13]


def test_a_page_without_counters_or_that_stopped_updating_reports_nothing(proven: Progress) -> None:
    proven.read(0, None, None, None)
    assert pass_s(proven, 100, holds=False) is None
    proven.read(4, 7.0)
    proven.unread()
    assert pass_s(proven, 100, holds=False) is None


def test_constant_figures_stay_valid_while_the_engine_serves_the_same_load(proven: Progress) -> None:
    proven.read(3, 7.0, 5.0)
    for _ in range(UNMOVED_READINGS):
        for _ in range(SERVED):
            proven.served()
        assert not proven.is_unmoved
        proven.read(3, 7.0, 5.0)
    assert proven.is_unmoved
    assert pass_s(proven, 100, holds=False) is None
    proven.read(3, 8.0, 5.0)
    assert not proven.is_unmoved


def test_a_page_that_shows_no_request_while_some_are_held_is_not_trusted(proven: Progress) -> None:
    for _ in range(UNMOVED_READINGS - 1):
        proven.read(0, holds=True)
    assert not proven.is_unmoved
    proven.read(0, holds=False)
    for _ in range(UNMOVED_READINGS):
        assert not proven.is_unmoved
        proven.read(0, holds=True)
    assert proven.is_unmoved
    proven.read(0, holds=False)
    assert proven.is_unmoved
    proven.read(2, holds=True)
    assert not proven.is_unmoved


def test_a_page_without_counts_of_requests_does_not_count_as_constant(proven: Progress) -> None:
    for _ in range(60):
        proven.read(None, holds=True)
    assert not proven.is_unmoved


def test_constant_figures_of_an_idle_or_long_streaming_engine_are_trusted(proven: Progress) -> None:
    for _ in range(60):
        proven.read(1, 7.0, 5.0)
        token(proven)
    assert not proven.is_unmoved


def test_one_probe_at_a_time_tries_a_stalled_engine(proven: Progress) -> None:
    pass_s(proven, 20)
    assert proven.begin(probe=True)
    assert not proven.begin(probe=True)
    assert not proven.begin()
    proven.end()
    assert not proven.begin(probe=True)
    pass_s(proven, TRIAL_S)
    assert proven.begin(probe=True)


def test_an_engine_that_answers_a_probe_in_time_was_never_stalled(proven: Progress) -> None:
    assert pass_s(proven, LEAST_S) is None
    assert not proven.begin(probe=True)
    assert pass_s(proven, 1) is None
    assert (proven.is_suspected, proven.refusal, proven.begin()) == (True, "", False)
    assert proven.begin(probe=True)
    token(proven)
    proven.end()
    assert pass_s(proven, LEAST_S * FACTOR) is None


def test_an_engine_that_refuses_the_probe_is_stalled_at_once(proven: Progress) -> None:
    pass_s(proven, LEAST_S + 1)
    assert proven.begin(probe=True)
    proven.end()
    proven.try_by_requests()
    assert pass_s(proven, 1) == 1


def test_if_probes_are_refused_single_requests_try_the_instance(proven: Progress) -> None:
    pass_s(proven, 20)
    assert proven.begin(probe=True)
    proven.end()
    proven.try_by_requests()
    assert proven.refusal == ""
    assert proven.begin()
    assert proven.refusal == proven.stalled
    proven.end()
    assert proven.refusal == proven.stalled
    pass_s(proven, TRIAL_S)
    assert (proven.refusal, proven.begin(probe=True)) == ("", False)
    token(proven)
    pass_s(proven, 100)
    assert proven.begin(probe=True)


def answers_probes(
    progress: Progress,
    seconds: int,
    *,
    moves: float = 0.0,
    late_s: float = 0.0,
    routers: int = 1,
    holds: bool = True,
    abandons: float | None = None,
) -> int | None:
    """Let the engine answer a probe every ten seconds while its counters move each second; return when it stalled. A
    client abandons a request every `abandons` seconds, after holding it for the same time.
    """
    counted = 100.0
    for second in range(1, seconds + 1):
        if second % 10 == 0:
            progress.is_suspected = True
            progress.begin(probe=True)
            progress.end()
            progress.probed()
            counted += 3 * bool(moves)
        counted += moves if moves >= 1 else 0
        progress.read(2, counted)
        if abandons and second % abandons == 0:
            progress.ended_without(abandons)
        looked = progress.look(1.0, holds=holds, alive=True, routers=routers)
        if looked and progress.judge(AFTER_S, FACTOR, 0.0, late_s):
            return second
    return None


@pytest.mark.parametrize("moves", [0.0, 0.1])
def test_an_engine_that_only_answers_the_routers_own_requests_is_stalled(proven: Progress, moves: float) -> None:
    assert answers_probes(proven, 100, moves=moves) == AFTER_S + 1
    assert "tokens of the router's own requests alone for 46 s" in proven.stalled
    assert (proven.refusal, proven.begin(), proven.begin(probe=True)) == ("", True, False)
    assert answers_probes(proven, 30) is None
    assert proven.stalled
    token(proven)
    assert not proven.stalled


def test_counters_that_move_by_more_than_probes_are_tokens_of_clients(proven: Progress) -> None:
    assert answers_probes(proven, 300, moves=1.0) is None
    for second in range(300):
        proven.read(1, float(second // 8))  # a very slow engine that got no probe
        assert not (proven.look(1.0, holds=True, alive=True) and proven.judge(AFTER_S, FACTOR, 0.0))


def test_probes_of_other_routers_do_not_count_as_tokens_of_clients(proven: Progress) -> None:
    counted = 0.0
    for second in range(1, int(AFTER_S) + 2):
        counted += 6 if second % 10 == 0 else 0
        proven.read(2, counted)
        if proven.look(1.0, holds=True, alive=True, routers=3):
            proven.judge(AFTER_S, FACTOR, 0.0)
    assert proven.stalled


def test_an_engine_whose_tokens_are_not_visible_gets_the_time_of_a_whole_answer(proven: Progress) -> None:
    assert answers_probes(proven, 400, late_s=300.0) == 301


def test_clients_who_gave_up_before_the_time_of_an_answer_prove_nothing(proven: Progress) -> None:
    assert answers_probes(proven, 900, late_s=300.0, abandons=30) is None


def test_clients_who_waited_for_the_time_of_an_answer_count(proven: Progress) -> None:
    assert answers_probes(proven, 900, late_s=300.0, abandons=300) == 301
    progress = Progress()
    token(progress)
    assert answers_probes(progress, 900, moves=0.1, abandons=30) == AFTER_S + 1


def test_an_engine_that_refuses_clients_requests_counts_as_answering_them(proven: Progress) -> None:
    for second in range(600):
        proven.ended_without()
        proven.refused()
        if second % 10 == 0:
            proven.probed()
        proven.look(1.0, holds=second % 2 == 0, alive=True)
        proven.judge(AFTER_S, FACTOR, 0.0)
        assert not proven.stalled


def test_a_refusal_does_not_end_a_stall_that_only_a_token_ends(proven: Progress) -> None:
    assert answers_probes(proven, 60) is not None
    proven.refused()
    pass_s(proven, 1)
    assert proven.stalled


@pytest.mark.parametrize("late_s", [0.0, 300.0])
def test_requests_that_this_router_does_not_hold_are_judged_by_other_routers(proven: Progress, late_s: float) -> None:
    assert answers_probes(proven, 900, moves=0.1, late_s=late_s, holds=False) is None


@pytest.mark.parametrize("moves", [1.0, 2.0])
def test_a_slow_steady_engine_is_not_hidden_by_the_probes_of_many_routers(proven: Progress, moves: float) -> None:
    assert answers_probes(proven, 900, moves=moves, routers=8) is None


def test_a_page_that_returns_shows_no_silence_from_before(proven: Progress) -> None:
    assert answers_probes(proven, 200, late_s=300.0) is None
    proven.unread()
    assert answers_probes(proven, int(AFTER_S), moves=0.1) is None


def test_a_page_that_shows_probes_would_show_other_tokens_until_it_stops(proven: Progress) -> None:
    assert not proven.shows_probes
    proven.read(1, 7.0)
    proven.read(1, 9.0)
    assert proven.shows_probes
    proven.unread()
    assert not proven.shows_probes


def test_clients_whose_requests_took_longer_before_have_more_time(proven: Progress) -> None:
    assert answers_probes(proven, 40) is None
    token(proven)
    assert answers_probes(proven, 300) == 41 * FACTOR + 1


def test_a_silence_of_clients_whose_requests_have_left_ends_with_a_stall(proven: Progress) -> None:
    assert pass_s(proven, 60) == LEAST_S + THEN_S
    proven.probed()
    pass_s(proven, 1, holds=False)
    assert not proven.stalled
    assert answers_probes(proven, int(AFTER_S)) is None


@given(st.lists(st.integers(1, int(LEAST_S)), min_size=1), st.booleans())
def test_an_engine_that_produces_a_token_in_each_of_a_few_seconds_never_stalls(gaps: list[int], fresh: bool) -> None:
    progress = Progress()
    if not fresh:
        token(progress)
    for gap in gaps:
        assert pass_s(progress, gap) is None
        token(progress)


@given(st.lists(st.integers(1, 300), max_size=8))
def test_an_engine_that_hangs_is_detected_whatever_time_it_needed_before(gaps: list[int]) -> None:
    progress = Progress()
    for gap in gaps:
        pass_s(progress, gap)
        token(progress)
    assert pass_s(progress, max(AFTER_S, FACTOR * 300) + THEN_S) is not None


@pytest.mark.parametrize(
    ("tokens", "rate", "equal", "seconds"),
    [(0, 9_000.0, 0.0, 0.0), (1_000, 0.0, 1e12, 1_000 / ASSUMED_TOKENS_PER_S), (40_000, 8_000.0, 20_000.0, 10.0)],
)
def test_the_time_of_a_prompt_grows_with_its_tokens_and_its_attention(
    tokens: float, rate: float, equal: float, seconds: float
) -> None:
    assert prefill_s(tokens, rate, equal) == pytest.approx(seconds)


@pytest.mark.parametrize("sign", [Progress.came, lambda progress: progress.read(1, 9.0)])
def test_signs_of_progress_count_from_the_next_check(proven: Progress, sign: Callable[[Progress], None]) -> None:
    proven.read(1, 8.0)
    pass_s(proven, 60)
    sign(proven)
    assert proven.stalled
    assert pass_s(proven, 1) is None
    assert not proven.stalled


def test_a_token_shows_until_the_check_after_the_next(proven: Progress) -> None:
    assert proven.is_producing
    pass_s(proven, 1)
    assert not proven.is_producing
