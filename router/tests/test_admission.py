"""When every instance is full, requests wait in a bounded line and are refused beyond it."""

import asyncio

import pytest

from router.admission import Queue, QueueFull
from router.tests.conftest import entry
from router.tests.engine import hang


async def test_the_line_is_served_in_its_order():
    queue, served = Queue(), []

    async def wait(name):
        await queue.wait("warm", queue.ticket(), 10)
        served.append(name)

    waiting = [asyncio.ensure_future(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    for _ in range(3):
        queue.wake()
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert served == ["a", "b", "c"]
    assert len(queue) == 0


async def test_a_request_that_was_woken_in_vain_keeps_its_place():
    queue, served = Queue(), []
    first, second = queue.ticket(), queue.ticket()

    async def wait(name, ticket):
        await queue.wait("warm", ticket, 10)
        served.append(name)

    waiting = [asyncio.ensure_future(wait("second", second)), asyncio.ensure_future(wait("first", first))]
    await asyncio.sleep(0)
    queue.wake_all()
    await asyncio.gather(*waiting)
    assert served == ["first", "second"]


async def test_a_waker_is_not_lost_with_the_one_who_leaves():
    queue = Queue()
    leaver = asyncio.ensure_future(queue.wait("warm", queue.ticket(), 10))
    stayer = asyncio.ensure_future(queue.wait("warm", queue.ticket(), 10))
    await asyncio.sleep(0)
    queue.wake()
    leaver.cancel()
    await asyncio.wait_for(stayer, 1)


async def test_each_class_has_a_bound_of_its_own():
    queue = Queue()
    waiting = asyncio.ensure_future(queue.wait("heavy", queue.ticket(), 1))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await queue.wait("heavy", queue.ticket(), 1)
    warm = asyncio.ensure_future(queue.wait("warm", queue.ticket(), 1))
    await asyncio.sleep(0)
    assert queue.waiting == {"heavy": 1, "warm": 1}
    queue.wake_all()
    await asyncio.gather(waiting, warm)


async def fill(w, count):
    asking = [asyncio.ensure_future(w.ask()) for _ in range(count)]
    await w.until(lambda: sum(len(engine.received) for engine in w.engines) == count)
    return asking


async def test_a_request_waits_until_an_instance_has_room(world):
    w = await world(hang, admission__max_inflight_per_instance=2)
    running = await fill(w, 2)
    waiting = asyncio.ensure_future(w.ask())
    await w.until(lambda: len(w.router.pools.get("demo").queue) == 1)
    w.engines[0].release.set()
    response = await waiting
    assert response.status_code == 200
    assert (await w.receipt(response))["queue_ms"] > 0
    await asyncio.gather(*running)


async def test_beyond_the_line_a_request_is_refused_and_told_when_to_come_back(world):
    w = await world(
        hang, admission__max_inflight_per_instance=1, admission__max_queue_warm=1, admission__retry_after_s=7
    )
    running = await fill(w, 1)
    waiting = asyncio.ensure_future(w.ask())
    await w.until(lambda: len(w.router.pools.get("demo").queue) == 1)
    refused = await w.ask()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "saturated")
    assert refused.headers["retry-after"] == "7"
    w.engines[0].release.set()
    assert (await waiting).status_code == 200
    await asyncio.gather(*running)


async def test_the_status_of_a_refusal_is_the_policys(world):
    w = await world(
        hang, admission__max_inflight_per_instance=1, admission__max_queue_warm=0, admission__refuse_status=503
    )
    running = await fill(w, 1)
    assert (await w.ask()).status_code == 503
    w.engines[0].release.set()
    await asyncio.gather(*running)


async def test_a_new_instance_takes_those_who_wait(world):
    w = await world(hang, None, admission__max_inflight_per_instance=1)
    w.published.fleet(entry("demo-0", w.engines[0].url))
    await w.until(lambda: len(w.router.pools.get("demo").members) == 1)
    running = await fill(w, 1)
    waiting = asyncio.ensure_future(w.ask())
    await w.until(lambda: len(w.router.pools.get("demo").queue) == 1)
    w.published.fleet(entry("demo-0", w.engines[0].url), entry("demo-1", w.engines[1].url))
    assert (await waiting).headers["x-weir-instance"] == "demo-1"
    w.engines[0].release.set()
    await asyncio.gather(*running)
