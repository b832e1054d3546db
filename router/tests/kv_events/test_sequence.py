"""Batches are applied in order, even if some arrive late, twice or not at all."""

from hypothesis import given
from hypothesis import strategies as st

from router.kv_events.sequence import MOST_REPLAYS, Sequence


class Engine:
    """An engine that sends batches, and replays those that it still has."""

    def __init__(self, *, replays: bool = True) -> None:
        self.applied: list[int] = []
        self.lost_at: list[int] = []  # how many batches had been applied at each loss
        self.asked: list[int] = []
        self.replays = replays
        self.sequence = Sequence(lambda payload: self.applied.append(int(payload)), self._lose, self._ask)

    def _lose(self) -> None:
        self.lost_at.append(len(self.applied))

    def _ask(self, number: int) -> bool:
        self.asked.append(number)
        return self.replays

    def live(self, *numbers: int) -> None:
        for number in numbers:
            self.sequence.live(number, b"%d" % number)

    def replay(self, *numbers: int) -> None:
        for number in numbers:
            self.sequence.replayed_one(number, b"%d" % number)
        self.sequence.replay_ended()


def test_batches_in_order_are_applied_as_they_arrive() -> None:
    engine = Engine()
    engine.live(0, 1, 2)
    assert (engine.applied, engine.asked, engine.sequence.gaps) == ([0, 1, 2], [], 0)


def test_a_gap_is_requested_and_filled() -> None:
    engine = Engine()
    engine.live(0, 3, 4)
    assert (engine.applied, engine.asked) == ([0], [1])
    engine.replay(1, 2, 3)
    assert engine.applied == [0, 1, 2, 3, 4]
    assert (engine.sequence.gaps, engine.sequence.replayed, engine.lost_at) == (1, 2, [])


def test_batches_that_the_engine_no_longer_has_are_lost_and_the_rest_is_applied() -> None:
    engine = Engine()
    engine.live(0, 5)
    engine.replay(3, 4, 5)
    assert (engine.applied, engine.lost_at) == ([0, 3, 4, 5], [1])


def test_without_replay_a_gap_counts_as_lost_at_once() -> None:
    engine = Engine(replays=False)
    engine.live(0, 2, 3)
    assert (engine.applied, engine.lost_at) == ([0, 2, 3], [1])


def test_a_replay_that_never_ends_is_abandoned() -> None:
    engine = Engine()
    engine.live(0, 2)
    engine.sequence.replay_ended()
    assert (engine.applied, engine.lost_at) == ([0, 2], [1])


def test_a_gap_detected_during_another_request_is_requested_again() -> None:
    engine = Engine()
    engine.live(0)
    engine.sequence.confirm()
    engine.live(2)
    engine.replay()  # the reply to the first request, which is empty
    assert engine.asked == [1, 1]
    engine.replay(1, 2)
    assert (engine.applied, engine.lost_at) == ([0, 1, 2], [])


def test_a_further_gap_after_batches_that_wait_for_a_replay_is_requested_again() -> None:
    engine = Engine()
    engine.live(0, 2, 4)  # the replay of 1 began before 3 was sent, and was lost
    engine.replay(1, 2)
    assert (engine.applied, engine.asked, engine.lost_at) == ([0, 1, 2], [1, 3], [])
    engine.replay(3, 4)
    assert (engine.applied, engine.lost_at, engine.sequence.gaps) == ([0, 1, 2, 3, 4], [], 2)


def test_a_batch_is_not_applied_twice() -> None:
    engine = Engine()
    engine.sequence.start()
    engine.replay(0, 1, 2)
    assert engine.sequence.live(1, b"1") is False
    engine.live(3)
    assert engine.applied == [0, 1, 2, 3]


def test_a_batch_that_a_replay_loses_on_the_way_is_requested_again_with_the_following_ones() -> None:
    engine = Engine()
    engine.sequence.start()
    engine.replay(0, 1, 3, 5)
    assert (engine.applied, engine.asked) == ([0, 1], [0, 2])
    engine.live(6)
    engine.replay(2, 3, 4, 5, 6)
    assert (engine.applied, engine.lost_at, engine.sequence.gaps) == ([*range(7)], [], 2)
    assert engine.sequence.whole


def test_replays_that_keep_losing_batches_are_abandoned() -> None:
    engine = Engine()
    engine.sequence.start()
    for number in range(MOST_REPLAYS + 1):
        engine.replay(number, number + 2)
    assert len(engine.asked) == MOST_REPLAYS + 1
    assert (engine.lost_at, engine.applied[-1]) == ([MOST_REPLAYS + 1], MOST_REPLAYS + 2)


def test_batches_older_than_a_replay_that_arrived_meanwhile_are_applied_before_it() -> None:
    """An engine with a short buffer may have published them after the replay was requested."""
    engine = Engine()
    engine.live(0, 3, 5, 6)
    engine.replay(6)
    assert (engine.applied, engine.lost_at) == ([0, 3, 5, 6], [1, 2])
    engine.live(7)
    assert (engine.applied[-1], engine.sequence.whole, engine.asked) == (7, True, [1])


@given(st.data())
def test_the_latest_batches_are_eventually_known_whatever_live_or_replayed_batches_are_lost(
    data: st.DataObject,
) -> None:
    engine, buffer, published = Engine(), data.draw(st.integers(1, 6)), 0
    for _ in range(data.draw(st.integers(1, 20))):
        if data.draw(st.booleans()):
            if data.draw(st.booleans()):
                engine.live(published)
            published += 1
        elif engine.sequence.asking:
            kept = range(max(engine.asked[-1], published - buffer), published)
            engine.replay(*(number for number in kept if data.draw(st.booleans())))
    for _ in range(MOST_REPLAYS + 2):
        engine.sequence.confirm()
        engine.replay(*range(max(engine.asked[-1], published - buffer), published))
    assert (engine.sequence.next, engine.sequence.whole, engine.sequence.asking) == (published, True, False)
    assert engine.applied == sorted(set(engine.applied))
    steps = zip([-1, *engine.applied], engine.applied, strict=False)
    assert [place for place, (before, after) in enumerate(steps) if after != before + 1] == engine.lost_at


@given(st.lists(st.integers(0, 11), max_size=30), st.integers(0, 11), st.booleans())
def test_in_any_order_nothing_is_applied_twice_and_gaps_are_reported(
    numbers: list[int], kept_from: int, replays: bool
) -> None:
    engine = Engine(replays=replays)
    for number in numbers:
        engine.live(number)
        if engine.sequence.asking:
            engine.replay(*range(max(kept_from, engine.sequence.next), number + 1))
    steps = zip([-1, *engine.applied], engine.applied, strict=False)
    jumps = [place for place, (before, after) in enumerate(steps) if after != before + 1]
    assert engine.applied == sorted(set(engine.applied))
    assert jumps == engine.lost_at
