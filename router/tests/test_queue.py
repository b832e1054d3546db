"""The line: who is next, that nobody starves, that no room is lost whoever leaves and when."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.pool.admission import IDLE_FLOWS, AdmissionQueue, QueueFull
from router.pool.departure_rate import DepartureRate

CLASSES = ("warm", "medium", "heavy")


async def settle():
    for _ in range(40):
        await asyncio.sleep(0)


class Rooms:
    """Waiters that take a room when one is free, as requests take instances."""

    def __init__(self, queue, free=0):
        self.queue = queue
        self.free = free
        self.served = []
        self.passed = set()  # who was called, found no room and let the next one look
        self.limit = 1000

    def ask(self, name, request_class="warm", flow="", cost=1.0):
        return asyncio.ensure_future(self._ask(name, request_class, flow, cost))

    async def _ask(self, name, request_class, flow, cost):
        place = None
        while not self.free or (place is None and len(self.queue)):
            if place is not None:
                self.passed.add(name)
            place = place or self.queue.place(request_class, flow, cost)
            await self.queue.wait(place, self.limit, room=self.free > 0)
        self.free -= 1
        self.served.append(name)
        if place is not None:
            self.queue.admitted(place, 0.0)

    def release(self, wake=True):
        self.free += 1
        if wake:
            self.queue.wake()


async def line_up(rooms, *asked):
    tasks = [rooms.ask(name, *more) for name, *more in asked]
    await settle()
    return tasks


async def serve(rooms, count):
    for _ in range(count):
        rooms.release()
        await settle()
    return rooms.served


async def test_one_flow_is_served_in_its_order():
    rooms = Rooms(AdmissionQueue())
    await line_up(rooms, *(("abc"[i],) for i in range(3)))
    assert await serve(rooms, 3) == ["a", "b", "c"]
    assert len(rooms.queue) == 0


async def test_who_was_woken_in_vain_keeps_its_place():
    rooms = Rooms(AdmissionQueue())
    await line_up(rooms, ("first",), ("second",))
    rooms.queue.wake_all()
    await settle()
    assert await serve(rooms, 2) == ["first", "second"]


async def test_classes_get_room_by_their_shares():
    queue = AdmissionQueue()
    queue.shares = {"warm": 4, "medium": 2, "heavy": 1}
    rooms = Rooms(queue)
    tasks = await line_up(rooms, *((name, name) for name in CLASSES for _ in range(100)))
    served = await serve(rooms, 70)
    assert [served.count(name) for name in CLASSES] == pytest.approx([40, 20, 10], abs=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(queue) == 0


async def test_flows_get_room_by_tokens_not_by_requests():
    rooms = Rooms(AdmissionQueue())
    small = [("small", "warm", "a", 1_000.0)] * 100
    large = [("large", "warm", "b", 10_000.0)] * 100
    tasks = await line_up(rooms, *small, *large)
    served = await serve(rooms, 44)
    assert (served.count("small"), served.count("large")) == pytest.approx((40, 4), abs=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_flow_that_was_idle_has_saved_nothing_up():
    rooms = Rooms(AdmissionQueue())
    tasks = await line_up(rooms, *[("old", "warm", "a")] * 60)
    await serve(rooms, 50)
    tasks += await line_up(rooms, *[("new", "warm", "b")] * 10)
    assert (await serve(rooms, 10))[50:].count("new") == pytest.approx(5, abs=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_class_has_a_bound_of_its_own():
    queue = AdmissionQueue()
    waiting = asyncio.ensure_future(queue.wait(queue.place("heavy"), 1))
    await settle()
    with pytest.raises(QueueFull):
        await queue.wait(queue.place("heavy"), 1)
    warm = asyncio.ensure_future(queue.wait(queue.place("warm"), 1))
    await settle()
    assert queue.waiting == {"heavy": 1, "warm": 1}
    queue.wake_all()
    await asyncio.gather(waiting, warm)


async def test_room_that_nobody_told_of_is_found_by_looking_again():
    rooms = Rooms(AdmissionQueue())
    await line_up(rooms, *((i,) for i in range(5)))
    for _ in range(3):
        rooms.release(wake=False)
    rooms.queue.look_again()
    await settle()
    assert rooms.served == [0, 1, 2]


async def test_who_comes_while_there_is_room_and_a_line_does_not_overtake():
    rooms = Rooms(AdmissionQueue())
    await line_up(rooms, ("first",))
    rooms.release(wake=False)
    await line_up(rooms, ("second",))
    assert rooms.served == ["first"]
    assert await serve(rooms, 1) == ["first", "second"]


async def test_room_that_the_first_cannot_use_goes_to_the_next():
    queue = AdmissionQueue()
    first, second = queue.place("warm"), queue.place("warm")
    took = []

    async def picky():
        while not took:
            await queue.wait(first, 10)
        took.append("first")

    async def easy():
        await queue.wait(second, 10)
        took.append("second")
        queue.admitted(second, 0.0)

    waiting = [asyncio.ensure_future(picky()), asyncio.ensure_future(easy())]
    await settle()
    queue.wake()
    await settle()
    assert took == ["second"]
    queue.wake()
    await asyncio.gather(*waiting)


async def test_clocks_of_flows_that_are_gone_are_forgotten():
    rooms = Rooms(AdmissionQueue())
    (last,) = await line_up(rooms, ("last", "warm", "dear", 1e12))
    line = rooms.queue._lines["warm"]
    for i in range(2 * IDLE_FLOWS):
        await line_up(rooms, (i, "warm", f"flow-{i}", 1e12), ("x", "warm", "always"))
        await serve(rooms, 2)
        assert len(line._clocks) <= IDLE_FLOWS + 4
    await serve(rooms, 1)
    await last
    assert not line._clocks


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(CLASSES), st.sampled_from("xyz"), st.integers(1, 100)),
        st.tuples(st.just("room"), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 60), st.booleans()),
        st.tuples(st.just("settle")),
        st.tuples(st.just("everybody")),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_happens_no_room_is_lost_and_every_flow_keeps_its_order(steps):
    asyncio.run(play(steps))


class Play:
    def __init__(self):
        self.rooms = Rooms(AdmissionQueue())
        self.tasks = []
        self.kinds = []
        self.given = 0

    def ask(self, request_class, flow, cost):
        self.tasks.append(self.rooms.ask(len(self.tasks), request_class, flow, float(cost)))
        self.kinds.append((request_class, flow))

    def room(self, wake):
        self.given += 1
        self.rooms.release(wake=wake)

    def cancel(self, which, in_the_moment_of_being_woken):
        if which < len(self.tasks):
            if in_the_moment_of_being_woken:
                self.rooms.queue.look_again()
            self.tasks[which].cancel()

    def everybody(self):
        self.rooms.queue.wake_all()

    def waiting(self):
        return [i for i, task in enumerate(self.tasks) if not task.done()]


async def play(steps):
    game = Play()
    queue, rooms = game.rooms.queue, game.rooms
    for name, *arguments in steps:
        await settle() if name == "settle" else getattr(game, name)(*arguments)
    for _ in range(3):  # as the router does every second
        await settle()
        queue.look_again()
    await settle()
    left = game.waiting()
    assert rooms.free == 0 or not left, "there is room, and somebody waits"
    assert rooms.free == game.given - len(rooms.served)
    assert sum(queue.waiting.values()) == len(queue) == len(left)
    for kind in set(game.kinds):
        order = [i for i in rooms.served if game.kinds[i] == kind and i not in rooms.passed]
        assert order == sorted(order)
    for _ in left:  # nobody starves: as many rooms as there are waiters serve them all
        rooms.release()
        await settle()
    assert not game.waiting()
    assert len(queue) == 0


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 5.0), min_size=4, max_size=200))
def test_the_pace_lies_between_the_slowest_and_the_fastest(pauses):
    drain, now = DepartureRate(), 0.0
    for at in itertools.accumulate(pauses):
        drain.left(at)
        now = at
    rate = drain.rate(now)
    assert rate is None or rate > 0
    if rate is not None:
        assert rate <= (len(pauses)) / max(pauses[-1], 1e-3) * 10 + len(pauses) / min(pauses)


def test_a_steady_pace_is_told_as_it_is():
    drain = DepartureRate()
    assert drain.rate(0.0) is None
    for i in range(200):
        drain.left(i * 0.5)
    assert drain.rate(99.5) == pytest.approx(2.0, rel=0.1)


def test_a_line_that_has_stood_still_has_no_pace():
    drain = DepartureRate()
    for i in range(20):
        drain.left(i * 0.1)
    assert drain.rate(200.0) is None
