"""The choice of the next line: turns computed directly, and simulated with engines of a fixed number of slots."""

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping

import pytest

from controlplane.traffic.batches import turns
from controlplane.traffic.batches.line_queue import LONGEST_PAUSE_S, LineQueue, delay
from controlplane.traffic.batches.lines import Line, Reason
from controlplane.traffic.batches.turns import Ticket, Turns

QUOTA = Reason("insufficient_quota", "the budget is used up")
TOKENS = (100, 200)


def queue(key: int, lines: int, model: str = "m") -> LineQueue:
    return LineQueue(key, [Line(f"{key}-{i}", model, 0, 1) for i in range(lines)])


def taken(fair: Turns, number: int, now: float = 0.0) -> list[Ticket]:
    return [ticket for ticket in (fair.next(now) for _ in range(number)) if ticket is not None]


def widened(*queues: LineQueue, lane: int = 64) -> Turns:
    fair = Turns()
    for one in queues:
        fair.add(one)
        for model in one.flows:
            fair.lanes[model] = turns.Lane(pace=turns.LinePace(lane))
    return fair


def played(
    keys: Mapping[int, int], stuck: int | None = None, tokens: Mapping[int, tuple[int, int]] | None = None
) -> dict[int, float]:
    """Return key → when its last line was answered. The lane has 32 slots; the stuck key's lines are refused at
    once."""
    queues = {key: queue(key, lines) for key, lines in keys.items()}
    fair, now, ends = widened(*queues.values(), lane=32), 0.0, dict[int, float]()
    under_way: list[tuple[float, int, Ticket]] = []
    while len(ends) < len(keys) - (stuck is not None):
        while ticket := fair.next(now):
            needed = (tokens or {}).get(ticket.queue.key, TOKENS)
            took_s = 0.001 if ticket.queue.key == stuck else 0.01 * needed[1]
            heapq.heappush(under_way, (now + took_s, ticket.number * 1_000 + ticket.queue.key, ticket))
        now, _, ticket = heapq.heappop(under_way)
        if ticket.queue.key == stuck:
            ticket.flow.remaining.append((ticket.number, ticket.line))
            ticket.flow.refuse(QUOTA, 0.0, ticket.sent_at, now)
            fair.settle(ticket, None)
            continue
        fair.settle(ticket, (tokens or {}).get(ticket.queue.key, TOKENS))
        if ticket.queue.has_ended:
            fair.remove(ticket.queue)
            ends[ticket.queue.key] = now
    return ends


def test_eighteen_keys_end_as_they_would_without_the_stuck_and_the_huge_one() -> None:
    others = {key: 200 for key in range(18)}
    alone, beside = played(others), played({**others, 18: 5, 19: 20_000}, stuck=18)
    assert max(beside[key] / alone[key] for key in others) < 1.1
    assert beside[19] > 4 * max(beside[key] for key in others)


def test_a_small_batch_beside_a_huge_one_gets_half_of_the_slots() -> None:
    alone, beside = played({1: 400})[1], played({0: 20_000, 1: 400})[1]
    assert 1.8 < beside / alone < 2.2


def test_turns_are_fair_by_tokens_not_by_lines() -> None:
    ends = played({1: 400, 2: 2_000}, tokens={1: (100, 1_000), 2: (20, 200)})
    assert ends[1] == pytest.approx(ends[2], rel=0.1)


def test_batches_of_one_key_share_its_turns() -> None:
    fair = widened(*(queue(1, 100) for _ in range(4)), queue(2, 100), lane=40)
    count = Counter(ticket.queue.key for ticket in taken(fair, 40))
    assert count == {1: 20, 2: 20}


def test_each_batch_of_a_key_has_its_turn() -> None:
    first, second = queue(1, 100), queue(1, 100)
    chosen = taken(widened(first, second), 6)
    assert [ticket.queue for ticket in chosen] == [first, second] * 3


def test_lines_in_flight_are_limited_for_each_key_and_for_all_keys() -> None:
    models = [queue(1, 100, f"m{i}") for i in range(8)]
    assert len(taken(widened(*models), 1_000)) == turns.MOST_OF_KEY
    fair = widened(*(queue(key, 100, f"m{key}") for key in range(9)))
    assert len(taken(fair, 1_000)) == turns.MOST_IN_ALL
    fair.add(queue(9, 100, "late"))
    assert len(taken(fair, 1_000)) == 1


def test_the_first_line_of_a_key_does_not_wait_for_long_answers_of_others() -> None:
    hog, late = queue(1, 100), queue(2, 100)
    fair = widened(hog)
    assert len(taken(fair, 1_000)) == 64
    fair.add(late)
    assert [ticket.queue for ticket in taken(fair, 5)] == [late]


def test_a_lane_that_was_narrowed_for_other_traffic_stays_narrow() -> None:
    fair = widened(queue(1, 10), lane=1)
    assert len(taken(fair, 5)) == 1
    fair.add(queue(2, 10))
    assert taken(fair, 5) == []


def test_after_a_refusal_one_line_at_a_time_is_retried_and_the_pause_grows() -> None:
    lines = queue(1, 10)
    fair, now, asked = widened(lines), 0.0, list[float]()
    for _ in range(9):
        tickets = taken(fair, 99, now)
        asked.append(now)
        for ticket in tickets:
            ticket.flow.remaining.append((ticket.number, ticket.line))
            ticket.flow.refuse(QUOTA, 0.0, ticket.sent_at, now + 0.1)
            fair.settle(ticket, None)
        assert len(tickets) == (10 if now == 0 else 1)
        assert taken(fair, 99, now + 0.5) == []
        flow = lines.waiting()
        assert flow is not None
        assert flow.reason == QUOTA
        now = flow.paused_until
    pauses = [round(late - early, 1) for early, late in itertools.pairwise(asked)]
    assert pauses == [1.1, 2.1, 4.1, 8.1, 16.1, 32.1, 60.1, 60.1]


def test_retry_after_is_obeyed_up_to_a_minute() -> None:
    for asked_s, waited_s in ((0, 1.0), (7, 7.0), (90_000, LONGEST_PAUSE_S)):
        (ticket,) = taken(widened(queue(1, 1)), 5)
        ticket.flow.refuse(QUOTA, asked_s, ticket.sent_at, 1.0)
        assert ticket.flow.paused_until == 1.0 + waited_s


def test_an_answer_to_an_earlier_line_does_not_end_a_pause() -> None:
    lines = queue(1, 10)
    first, second = taken(widened(lines), 2, 1.0)
    second.flow.refuse(QUOTA, 0.0, second.sent_at, 2.0)
    first.flow.go_on(first.sent_at)
    assert lines.waiting() is not None
    first.flow.go_on(3.0)
    assert lines.waiting() is None


def test_a_refused_model_does_not_delay_the_others_of_its_batch() -> None:
    lines = LineQueue(1, [Line("a", "asleep", 0, 1), Line("b", "awake", 0, 1), Line("c", "asleep", 0, 1)])
    fair = widened(lines)
    by_name = {ticket.line.custom_id: ticket for ticket in taken(fair, 2)}
    asleep = by_name["a"]
    asleep.flow.remaining.append((asleep.number, asleep.line))
    asleep.flow.refuse(Reason("waking", "it sleeps"), 30, asleep.sent_at, 0.0)
    fair.settle(asleep, None)
    assert lines.waiting() is None
    assert not lines.is_held_up(1.0)
    fair.settle(by_name["b"], TOKENS)
    assert lines.waiting() is not None
    assert lines.flows.keys() == {"asleep"}


def test_a_key_that_could_not_send_has_no_claim_on_past_time() -> None:
    steady, back = queue(1, 500), queue(2, 500)
    fair = widened(steady, lane=8)
    for _ in range(300):
        (ticket,) = taken(fair, 1)
        fair.settle(ticket, TOKENS)
    fair.add(back)
    assert Counter(ticket.queue.key for ticket in taken(fair, 8)) == {1: 4, 2: 4}


def test_a_key_cannot_reset_its_use_by_ending_its_batch() -> None:
    fair, other = widened(lane=8), queue(2, 100)
    first = queue(1, 1)
    fair.add(first)
    fair.add(other)
    fair.lanes["m"] = turns.Lane(pace=turns.LinePace(1))
    (ticket,) = taken(fair, 1)
    fair.settle(ticket, (100_000, 0))
    fair.remove(first)
    fair.pace(turns.EngineReports())
    fair.add(queue(1, 100))
    for _ in range(20):
        (ticket,) = taken(fair, 1)
        assert ticket.queue is other
        fair.settle(ticket, TOKENS)


def test_failing_lines_use_their_key_s_turns() -> None:
    failing, good = queue(1, 500), queue(2, 500)
    fair, count = widened(failing, good, lane=1), Counter[int]()
    for _ in range(100):
        (ticket,) = taken(fair, 1)
        count[ticket.queue.key] += 1
        fair.settle(ticket, (0, 0) if ticket.queue is failing else TOKENS)
    assert count[2] >= 45


def test_a_failed_line_is_retried_when_its_time_has_come() -> None:
    lines = queue(1, 1)
    fair = widened(lines)
    (ticket,) = taken(fair, 5)
    delay(ticket.flow, ticket.number, ticket.line, 4.0)
    fair.settle(ticket, (0, 0))
    assert (taken(fair, 5, 3.9), lines.has_ended) == ([], False)
    assert [again.number for again in taken(fair, 5, 4.0)] == [ticket.number]


def test_unused_lanes_and_keys_are_forgotten() -> None:
    lines = queue(1, 1)
    fair = widened(lines)
    (ticket,) = taken(fair, 5)
    fair.pace(turns.EngineReports())
    assert fair.lanes.keys() == {"m"}
    fair.settle(ticket, TOKENS)
    fair.remove(lines)
    fair.pace(turns.EngineReports())
    assert fair.lanes == {}
