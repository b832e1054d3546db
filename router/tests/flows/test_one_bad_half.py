"""If halves that run at the same time fail together, they count as one failure, not as two engines that failed
alike."""

import asyncio
import json
from typing import Any

import pytest

from router.contract.connectors import SGLANG
from router.pool.health import failure_attribution
from router.tests.engine import Engine, Received, Writer, reply
from router.tests.flows.test_fault_of_each_api import BODIES, built, noted, serves
from router.tests.liar import plans
from router.upstream import breaker

FAILED = reply({"error": {"message": "transfer failed for request"}}, 500)


@pytest.mark.parametrize("bad", [0, 2])
async def test_one_bad_half_costs_no_client_an_answer(world: Any, bad: int) -> None:
    """Both engines fail if either of the pair cannot move KV: demo-0, which prefills, or demo-2, which decodes."""
    w = await built(world, SGLANG)
    found, version = noted(w.router.recorder), w.published.policy(strategy="round_robin_pd")
    await w.until(lambda: w.router.pools.get("demo").version == version)

    async def paired(engine: Engine, request: Received, writer: Writer) -> None:
        room = json.loads(request.body).get("bootstrap_room")
        is_bad = room is None or any(room == one.document["bootstrap_room"] for one in w.engines[bad].received)
        for _ in range(200 if room is not None and not is_bad else 0):
            met = [one for one in w.engines if any(room == got.document["bootstrap_room"] for got in one.received)]
            if len(met) == 2:
                is_bad = w.engines[bad] in met
                break
            await asyncio.sleep(0.001)
        await (FAILED if is_bad else serves)(engine, request, writer)

    for one in w.engines:
        one.behaviour = paired
    for turn in range(6):
        body = {"model": "llama", **BODIES[plans.CHAT], "stream": turn % 2 == 0, "user": f"user {turn}"}
        response = await w.client.post(plans.CHAT, json=body)
        assert response.status_code == 200, response.text
    await w.until(lambda: len(found) == 6, "receipts")
    assert {one["result"] for one in found} == {"served"}
    assert w.engines[bad].received


@pytest.mark.parametrize(("role", "names"), [("prefill", (0, 1)), ("decode", (2, 3))])
async def test_one_client_can_shut_out_only_one_of_two_instances_of_a_role_but_several_can_shut_out_both(
    world: Any, role: str, names: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = await built(world, SGLANG)
    version = w.published.policy(failure__breaker_failures=2)
    pool = w.router.pools.get("demo")
    await w.until(lambda: pool.version == version)
    found = [pool.endpoints[f"demo-{name}"] for name in names]
    for endpoint in found * 4:
        assert endpoint.role == role
        failure_attribution.failed(pool, endpoint, "mallory")
    assert [endpoint.breaker.state for endpoint in found] == ["open", "closed"]
    failure_attribution.failed(pool, found[1], "alice")
    assert found[1].breaker.state == "closed"
    monkeypatch.setattr(breaker, "SPARED_S", 0.0)
    failure_attribution.failed(pool, found[1], "alice")
    assert found[1].breaker.state == "open"
