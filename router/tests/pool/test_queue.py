"""The queue keeps its order, starves no request and loses no capacity, whichever request leaves and when."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.pool.queue.admission_queue import AdmissionQueue, QueueFull
from router.pool.queue.class_queue import IDLE_TENANTS, ClassQueue, QueueEntry
from router.tests.pool.waiting import wait

CLASSES = ("warm", "medium", "heavy")


async def settle():
    for _ in range(40):
        await asyncio.sleep(0)


class Server:
    """A server whose requests take capacity when some is free."""

    def __init__(self, queue, free=0):
        self.queue = queue
        self.free = free
        self.served = []
        self.passed = set()  # woken without getting capacity

    def ask(self, name, request_class="warm", tenant="", cost=1.0):
        return asyncio.ensure_future(self._ask(name, request_class, tenant, cost))

    async def _ask(self, name, request_class, tenant, cost):
        entry = None
        while not self.free or (entry is None and len(self.queue)):
            if entry is not None:
                self.passed.add(name)
            entry = entry or self.queue.entry(request_class, tenant, cost)
            await wait(self.queue, entry, capacity=self.free > 0)
        self.free -= 1
        self.served.append(name)
        if entry is not None:
            self.queue.admitted(entry)

    def release(self, wake=True):
        self.free += 1
        if wake:
            self.queue.wake()


async def enqueue(server, *asked):
    tasks = [server.ask(name, *more) for name, *more in asked]
    await settle()
    return tasks


async def serve(server, count):
    for _ in range(count):
        server.release()
        await settle()
    return server.served


async def test_one_tenants_requests_are_served_in_order():
    server = Server(AdmissionQueue())
    await enqueue(server, *(("abc"[i],) for i in range(3)))
    assert await serve(server, 3) == ["a", "b", "c"]
    assert len(server.queue) == 0


async def test_a_request_woken_in_vain_keeps_its_position():
    server = Server(AdmissionQueue())
    await enqueue(server, ("first",), ("second",))
    server.queue.wake_all()
    await settle()
    assert await serve(server, 2) == ["first", "second"]


async def test_classes_get_capacity_by_their_shares():
    queue = AdmissionQueue()
    queue.shares = {"warm": 4, "medium": 2, "heavy": 1}
    server = Server(queue)
    tasks = await enqueue(server, *((name, name) for name in CLASSES for _ in range(100)))
    served = await serve(server, 70)
    assert [served.count(name) for name in CLASSES] == pytest.approx([40, 20, 10], abs=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(queue) == 0


async def test_tenants_get_capacity_by_tokens_not_by_requests():
    server = Server(AdmissionQueue())
    small = [("small", "warm", "a", 1_000.0)] * 100
    large = [("large", "warm", "b", 10_000.0)] * 100
    tasks = await enqueue(server, *small, *large)
    served = await serve(server, 44)
    assert (served.count("small"), served.count("large")) == pytest.approx((40, 4), abs=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tenant_earns_no_credit_while_idle():
    server = Server(AdmissionQueue())
    tasks = await enqueue(server, *[("old", "warm", "a")] * 60)
    await serve(server, 50)
    tasks += await enqueue(server, *[("new", "warm", "b")] * 10)
    assert (await serve(server, 10))[50:].count("new") == pytest.approx(5, abs=1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_class_has_its_own_bound():
    queue = AdmissionQueue()
    waiting = asyncio.ensure_future(wait(queue, queue.entry("heavy"), 1))
    await settle()
    with pytest.raises(QueueFull):
        await wait(queue, queue.entry("heavy"), 1)
    warm = asyncio.ensure_future(wait(queue, queue.entry("warm"), 1))
    await settle()
    assert queue.waiting == {"heavy": 1, "warm": 1}
    queue.wake_all()
    await asyncio.gather(waiting, warm)


async def test_in_a_full_queue_the_tenant_with_most_requests_makes_room_for_a_tenant_with_fewer():
    queue, tasks = AdmissionQueue(), {}

    async def asks(name, tenant, band=0):
        tasks[name] = asyncio.ensure_future(wait(queue, queue.entry("warm", tenant, band=band), 4))
        await settle()
        return not tasks[name].done() or tasks[name].exception() is None

    for number in range(4):
        assert await asks(f"hog {number}", "hog")
    assert not await asks("hog 4", "hog")
    for name in ("a", "b"):
        assert await asks(name, name)
    assert [name for name, task in tasks.items() if not task.done()] == ["hog 0", "hog 1", "a", "b"]
    assert not await asks("a 2", "a")  # two requests against one each: no key has two more than another
    assert not await asks("low", "c", band=-1)  # a lower band displaces no request
    assert (len(queue), queue.displaced) == (4, {0: 2})
    low = asyncio.ensure_future(wait(queue, queue.entry("heavy", "d", band=-1), 4))
    await settle()
    assert queue.makes_room(queue.entry("warm", "c"))  # the lowest band is displaced first, whatever its class
    await settle()
    assert (low.done(), queue.displaced) == (True, {0: 2, -1: 1})
    await asyncio.gather(low, return_exceptions=True)
    queue.wake_all()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
@settings(max_examples=50)
def test_the_newest_request_of_the_tenant_with_most_requests_is_known_after_any_arrivals_and_departures(changes):
    queue, waiting = ClassQueue(), {name: [] for name in "abcdx"}
    for order, (name, arrives) in enumerate(changes):
        if arrives:
            waiting[name].append(QueueEntry(order, "warm", name, 1.0))
            queue.put(waiting[name][-1])
        elif waiting[name]:
            queue.drop(waiting[name].pop(order % len(waiting[name])))
        most = max(map(len, waiting.values()))
        for own, entries in waiting.items():
            found = queue.newest_beyond(own)
            assert (found is not None) == (most > len(entries) + 1)
            assert found is None or found in [one[-1] for one in waiting.values() if len(one) == most]


async def test_unannounced_capacity_is_noticed_at_the_next_check():
    server = Server(AdmissionQueue())
    await enqueue(server, *((i,) for i in range(5)))
    for _ in range(3):
        server.release(wake=False)
    server.queue.look_again()
    await settle()
    assert server.served == [0, 1, 2]


async def test_a_request_that_arrives_while_others_wait_does_not_overtake_them():
    server = Server(AdmissionQueue())
    await enqueue(server, ("first",))
    server.release(wake=False)
    await enqueue(server, ("second",))
    assert server.served == ["first"]
    assert await serve(server, 1) == ["first", "second"]


async def test_capacity_that_the_first_request_cannot_use_goes_to_the_next():
    queue = AdmissionQueue()
    first, second = queue.entry("warm"), queue.entry("warm")
    took = []

    async def picky():
        while not took:
            await wait(queue, first, 10)
        took.append("first")

    async def easy():
        await wait(queue, second, 10)
        took.append("second")
        queue.admitted(second)

    waiting = [asyncio.ensure_future(picky()), asyncio.ensure_future(easy())]
    await settle()
    queue.wake()
    await settle()
    assert took == ["second"]
    queue.wake()
    await asyncio.gather(*waiting)


@pytest.mark.slow
async def test_clocks_of_tenants_that_left_are_forgotten():
    server = Server(AdmissionQueue())
    (last,) = await enqueue(server, ("last", "warm", "dear", 1e12))
    waiting = server.queue._bands[0].classes["warm"]
    for i in range(2 * IDLE_TENANTS):
        await enqueue(server, (i, "warm", f"tenant-{i}", 1e12), ("x", "warm", "always"))
        await serve(server, 2)
        assert len(waiting._tenants) <= IDLE_TENANTS + 4
    await serve(server, 1)
    await last
    assert not waiting._tenants


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(CLASSES), st.sampled_from("xyz"), st.integers(1, 100)),
        st.tuples(st.just("capacity"), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 60), st.booleans()),
        st.tuples(st.just("settle")),
        st.tuples(st.just("everybody")),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_no_capacity_is_lost_and_every_tenant_keeps_its_order_whatever_happens(steps):
    asyncio.run(play(steps))


class Play:
    def __init__(self):
        self.server = Server(AdmissionQueue())
        self.tasks = []
        self.kinds = []
        self.given = 0

    def ask(self, request_class, tenant, cost):
        self.tasks.append(self.server.ask(len(self.tasks), request_class, tenant, float(cost)))
        self.kinds.append((request_class, tenant))

    def capacity(self, wake):
        self.given += 1
        self.server.release(wake=wake)

    def cancel(self, which, in_the_moment_of_being_woken):
        if which < len(self.tasks):
            if in_the_moment_of_being_woken:
                self.server.queue.look_again()
            self.tasks[which].cancel()

    def everybody(self):
        self.server.queue.wake_all()

    def waiting(self):
        return [i for i, task in enumerate(self.tasks) if not task.done()]


async def play(steps):
    game = Play()
    queue, server = game.server.queue, game.server
    for name, *arguments in steps:
        await settle() if name == "settle" else getattr(game, name)(*arguments)
    for _ in range(3):  # as the router does every second
        await settle()
        queue.look_again()
    await settle()
    left = game.waiting()
    assert server.free == 0 or not left, "there is capacity, and a request waits"
    assert server.free == game.given - len(server.served)
    assert sum(queue.waiting.values()) == len(queue) == len(left)
    for kind in set(game.kinds):
        order = [i for i in server.served if game.kinds[i] == kind and i not in server.passed]
        assert order == sorted(order)
    for _ in left:  # no request starves: capacity for each of them serves them all
        server.release()
        await settle()
    assert not game.waiting()
    assert len(queue) == 0


async def order_of(look_again):
    server = Server(AdmissionQueue())
    server.queue.shares = {"warm": 1.0, "medium": 0.5, "heavy": 0.25}
    await enqueue(server, *((f"warm{i}", "warm") for i in range(3)))
    await serve(server, 1)
    if look_again:
        server.queue.look_again()
        await settle()
    await enqueue(server, ("medium", "medium"), ("heavy", "heavy"))
    await serve(server, 4)
    return server.served


async def test_a_request_that_is_woken_in_vain_does_not_change_the_order():
    assert await order_of(look_again=True) == await order_of(look_again=False)
