"""When every instance is full, requests wait in a bounded queue and are refused beyond it."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from router.request import predict
from router.tests.conftest import entry
from router.tests.engine import first_then_wait, hang, reply
from router.tests.pool.waiting import wait


async def fill(w, count):
    asking = [asyncio.ensure_future(w.ask()) for _ in range(count)]
    await w.until(lambda: sum(len(engine.received) for engine in w.engines) == count)
    return asking


async def test_a_request_waits_until_an_instance_has_capacity(world):
    w = await world(hang, admission__max_inflight_per_instance=2)
    running = await fill(w, 2)
    waiting = asyncio.ensure_future(w.ask())
    await w.until(lambda: len(w.router.pools.get("demo").queue) == 1)
    w.engines[0].release.set()
    response = await waiting
    assert response.status_code == 200
    assert (await w.receipt(response))["queue_ms"] > 0
    await asyncio.gather(*running)


async def test_a_full_queue_refuses_a_request_and_says_when_to_retry(world):
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


async def test_a_new_instance_takes_waiting_requests(world):
    w = await world(hang, None, admission__max_inflight_per_instance=1)
    w.published.fleet(entry("demo-0", w.engines[0].url))
    await w.until(lambda: len(w.router.pools.get("demo").endpoints) == 1)
    running = await fill(w, 1)
    waiting = asyncio.ensure_future(w.ask())
    await w.until(lambda: len(w.router.pools.get("demo").queue) == 1)
    w.published.fleet(entry("demo-0", w.engines[0].url), entry("demo-1", w.engines[1].url))
    assert (await waiting).headers["x-weir-instance"] == "demo-1"
    w.engines[0].release.set()
    await asyncio.gather(*running)


async def saturated(w, **headers):
    """Start one request and queue the next, or have it refused."""
    running = await fill(w, 1)
    asked = asyncio.ensure_future(w.ask(headers=headers))
    return running, asked


async def test_a_request_that_waited_as_long_as_its_class_allows_is_refused(world):
    w = await world(hang, admission__max_inflight_per_instance=1, admission__max_wait_warm_s=0.1)
    running, asked = await saturated(w)
    await w.until(lambda: w.router.source.reporter.status(0).queued == {"demo": {"warm": 1}})
    refused = await asked
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_timeout")
    assert (await w.receipt(refused))["outcome"] == "refused"
    assert w.router.recorder.classes(time.time())["demo"]["warm"].refusals == {"queue_timeout": 1}
    w.engines[0].release.set()
    await asyncio.gather(*running)
    assert len(w.engines[0].received) == 1


@pytest.mark.parametrize("header", ["x-weir-deadline-ms", "x-request-deadline-ms"])
async def test_a_request_whose_deadline_passes_while_it_waits_is_not_started(world, header):
    w = await world(hang, admission__max_inflight_per_instance=1)
    w.router.pools.get("demo").queue.expected_wait_s = lambda entry, now: None
    running, asked = await saturated(w, **{header: "100"})
    refused = await asked
    assert (refused.status_code, refused.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert (await w.receipt(refused))["outcome"] == "refused"
    w.engines[0].release.set()
    await asyncio.gather(*running)
    assert len(w.engines[0].received) == 1


async def test_a_request_within_its_deadline_is_served(world):
    w = await world(None)
    assert (await w.ask(headers={"x-weir-deadline-ms": "60000"})).status_code == 200


async def test_a_request_whose_deadline_the_queue_cannot_meet_is_refused_at_once_with_a_retry_time(world):
    w = await world(hang, admission__max_inflight_per_instance=1)
    running, waiting = await saturated(w)
    queue = w.router.pools.get("demo").queue
    await w.until(lambda: len(queue) == 1)
    queue.expected_wait_s = lambda entry, now: 30.0
    refused = await w.ask(headers={"x-weir-deadline-ms": "5000"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "deadline_unmeetable")
    assert refused.headers["retry-after"] == "30"
    w.engines[0].release.set()
    await asyncio.gather(*running, waiting)


@pytest.mark.parametrize("given", ["soon", "0", "-5", "1.5", "9" * 26, "0" * 20 + "9" * 400])
async def test_a_deadline_that_is_not_a_number_of_ms_is_refused(world, given):
    w = await world(None)
    refused = await w.ask(headers={"x-weir-deadline-ms": given})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_deadline")
    assert not w.engines[0].received


async def test_a_published_share_takes_effect_at_once(world):
    w = await world(None)
    pool = w.router.pools.get("demo")
    assert pool.queue.shares == {"warm": 4, "medium": 2, "heavy": 1}
    w.published.policy(admission__share_heavy=50)
    await w.until(lambda: pool.queue.shares["heavy"] == 50)


async def test_a_client_with_few_requests_does_not_queue_behind_one_with_many(world):
    """Both clients come from one address here, so the test sets the tenant that an API key would give."""
    w = await world(hang, admission__max_inflight_per_instance=1)
    running = await fill(w, 1)
    queue, order = w.router.pools.get("demo").queue, []

    async def stand(tenant):
        entry = queue.entry("warm", tenant, 10.0)
        await wait(queue, entry)
        order.append(tenant)
        queue.admitted(entry)
        queue.wake()

    greedy = [asyncio.ensure_future(stand("greedy")) for _ in range(10)]
    await asyncio.sleep(0)
    modest = asyncio.ensure_future(stand("modest"))
    await asyncio.sleep(0)
    w.engines[0].release.set()
    await asyncio.gather(*running, *greedy, modest)
    assert order.index("modest") == 1


async def test_a_client_that_leaves_while_its_prompt_is_looked_up_again_lets_the_next_one_go(world, monkeypatch):
    """A woken request waits for the index process before its decision."""
    w = await world(hang, admission__max_inflight_per_instance=1)
    asked = []

    async def ask(call, shared):
        asked.append(call.id)
        if call.id == "second" and asked.count("second") == 2:
            await asyncio.Event().wait()

    monkeypatch.setattr(predict, "ask", ask)
    pool = w.router.pools.get("demo")
    pool.kv_event_state.shared = SimpleNamespace(answers=False)
    running = await fill(w, 1)
    second = asyncio.ensure_future(w.ask(headers={"x-request-id": "second"}))
    await w.until(lambda: len(pool.queue) == 1)
    third = asyncio.ensure_future(w.ask(headers={"x-request-id": "third"}))
    await w.until(lambda: len(pool.queue) == 2)
    w.engines[0].release.set()
    await w.until(lambda: len(asked) == 4)
    second.cancel()
    assert (await third).status_code == 200
    await asyncio.gather(*running)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_instance_that_refuses_at_once_does_not_attract_requests_by_looking_empty(world, status):
    w = await world(first_then_wait, reply({"error": {"message": "full"}}, status), strategy="least_requests")
    asked = []
    for number in range(12):
        asked.append(asyncio.create_task(w.ask(stream=True)))
        await w.until(lambda n=number: len(w.engines[0].received) > n)
    w.engines[0].release.set()
    assert {response.status_code for response in await asyncio.gather(*asked)} == {200}
    assert len(w.engines[1].received) < 6, "only until the next second has begun"
