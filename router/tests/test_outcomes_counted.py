"""Walk the table of outcomes in docs/router.md: make each result happen and check every place that counts it."""

import asyncio
import time
from collections import Counter

import pytest

from router.contract.answer.verdict import VERDICTS
from router.limits.budgets import LocalBudgets
from router.serving import proxy
from router.tests.conftest import key_entry
from router.tests.contract.test_verdict import ROWS
from router.tests.deliveries import split
from router.tests.engine import engine, events, first_then_wait, reply, stream
from router.tests.picker.test_picking import Gateway
from router.tests.test_aliases import known, second
from router.tests.test_keys import ALICE, bearer
from router.upstream.errors import RouterExhausted

BEFORE = 1  # consecutive failures of each instance before the request
BREAKER = {"success": 0, "–": BEFORE, "taken back": BEFORE, "failure": BEFORE + 1}  # afterwards
BUDGETS = {
    "budgets": [{"id": "1", "unit": "tokens", "per": "day", "limit": 1_000_000}],
    "more_budgets": [{"id": "2", "unit": "requests", "per": "week", "limit": 1_000}],
}
DEAD = b'data: {"error":{"message":"EngineCore is dead","code":500}}\n\n'
# How the pool's engines behave, by result
ENGINES = {
    "served": [None],
    "client_error": [reply({"error": {"message": "too long", "code": 400}}, 400)],
    "failed_alike": [reply({"error": "bad"}, 500)] * 2,
    "failed_before_content": [reply({"error": "bad"}, 500)],
    "failed_after_content": [stream([events()[0], DEAD])],
    "router_failed": [None],
    "refused": [reply({"error": "full"}, 503)],
    "cancelled": [first_then_wait],
    "picked": [None],
}
STREAMED = ("failed_after_content", "cancelled")


def test_every_result_is_covered():
    assert ENGINES.keys() == VERDICTS.keys() == ROWS.keys() - {"result"}


@pytest.fixture
def happens(world, monkeypatch):
    """Send a router requests, with a key and during a delivery, so that one of them has the given result."""

    async def exhausted(*_):
        raise RouterExhausted("no file descriptor is left")

    async def build(result):
        w = await world(*ENGINES[result])
        w.published.keys(key_entry(ALICE, tokens_per_min=1_000_000, **BUDGETS), required=("*",))
        auth = w.router.pools.auth
        auth.budgets.store = LocalBudgets()
        await w.until(lambda: auth.ring is not None and auth.ring.by_hash, "the key")
        if result == "router_failed":
            monkeypatch.setattr(proxy, "post", exhausted)
        return w

    return build


async def ask(w, result, model="llama"):
    """Return the response once its receipt is written."""
    body = {"model": model, "prompt": "hello " * 40, "stream": result in STREAMED}
    if result == "picked":  # the gateway reports no end
        gateway = Gateway(w)
        await gateway.picked(body, **bearer(ALICE))
        return await gateway.receipt()
    if result == "cancelled":
        async with w.client.stream("POST", "/v1/completions", json=body, headers=bearer(ALICE)) as response:
            await anext(response.aiter_raw())
    else:
        response = await w.client.post("/v1/completions", json=body, headers=bearer(ALICE))
    return await w.receipt(response)


@pytest.mark.parametrize("result", ENGINES)
async def test_every_counter_counts_a_result_as_its_row_says(happens, result):
    outcome, fault_of, breaker, is_error, charged, use, _, _ = (cell.strip("`") for cell in ROWS[result])
    w = await happens(result)
    await split(w, 0.5)
    endpoints = w.router.pools.get("demo").endpoints.values()
    for endpoint in endpoints:
        endpoint.breaker.failed(asyncio.get_running_loop().time(), 5, "somebody else")
    receipt = await ask(w, result)

    assert [receipt[name] for name in ("result", "outcome", "fault")] == [result, outcome, fault_of]
    assert receipt["attempts"][-1]["result"] == result
    assert {endpoint.breaker.failures for endpoint in endpoints} == {BREAKER[breaker]}
    assert _tallied(w) == {"ended": 1, "failed": is_error == "yes", "errors": is_error == "yes",
                           "refused": outcome == "refused", "client_errors": outcome == "client_error"}  # fmt: skip
    counted = Counter({name: getattr(window, name) for window in _windows(w) for name in ("n", *_OUTCOMES)})
    assert +counted == {"n": 1, outcome if outcome != "picked" else "ok": 1}
    assert +_used(w) == {"requests": 1} | ({use: 1} if use != "–" else {})
    spent = {one.budget.unit: one.spent for one in w.router.pools.auth.budgets._spendings.values()}
    assert (spent["requests"], spent["tokens"] > 0) == (int(charged == "yes"), charged == "yes")
    page = (await w.client.get("/metrics")).text
    assert f'weir_router_requests_total{{class="{receipt["class"]}",outcome="{outcome}",pool="demo"}} 1.0' in page
    assert f'weir_router_key_requests_total{{key="alice",outcome="{outcome}"}} 1.0' in page


_OUTCOMES = ("ok", "error", "client_error", "refused", "cancelled")


def _tallied(w):
    delivery = w.router.recorder.deliveries["demo"]
    cells = [cell for arm, name in delivery.requests() for cell in delivery.read(arm, name).values()]
    return {
        name: sum(getattr(cell, name) for cell in cells)
        for name in ("ended", "failed", "errors", "refused", "client_errors")
    }


def _windows(w):
    return [window for window in w.router.recorder.classes(time.time())["demo"].values() if window.n]


def _used(w):
    names = ("requests", "client_errors", "failed", "refused", "cancelled")
    # the reporter may already have taken the changed hours
    (counts,) = [tally.read() for hour in w.router.recorder.use._hours.values() for tally in hour.rows.values()]
    return Counter({name: getattr(counts, name) for name in names})


@pytest.mark.parametrize("result", ENGINES)
async def test_an_alias_falls_back_as_the_row_says(happens, result):
    falls_back = ROWS[result][6] == "yes"
    w = await happens(result)
    async with engine() as spare:
        await second(w, spare)
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}]}})
        receipt = await ask(w, result, model="m")
        assert (receipt["pool"], len(spare.received)) == (("spot", 1) if falls_back else ("demo", 0))
        assert receipt["result"] == ("served" if falls_back else result)
