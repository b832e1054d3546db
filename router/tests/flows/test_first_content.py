"""In every flow, the prefill ends at the first content, whatever the engine sends before it."""

import asyncio
from typing import Any

import pytest

from router.contract.connectors import CONNECTORS, NEURON, NONE
from router.tests.engine import Engine, Received, Writer, write_chunk, write_head
from router.tests.flows.test_fault_of_each_api import BODIES, built, noted, serves
from router.tests.liar import plans

PAUSE_S = 0.05


@pytest.mark.parametrize("kv", [NONE, *CONNECTORS])
async def test_loads_ttft_and_transfers_end_or_start_at_the_first_content(world: Any, kv: str) -> None:
    w = await built(world, kv)
    found, decodes = noted(w.router.recorder), []

    async def early(engine: Engine, request: Received, writer: Writer) -> None:
        if request.method == "GET" or not request.document.get("stream") or plans.is_prefill(request.document):
            await serves(engine, request, writer)
            return
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for kind in ("begin", "ping", *plans.HONEST):
            write_chunk(writer, plans.event(request.target, kind, (9, 3)) + b"\n\n")
            await writer.drain()
            if kind in ("begin", "ping"):
                await asyncio.sleep(PAUSE_S)
                decodes.append(sum(one.decodes for one in w.router.pools.get("demo").endpoints.values()))
        writer.write(b"0\r\n\r\n")

    for one in w.engines:
        one.behaviour = early
    await w.client.post(plans.CHAT, json={"model": "llama", **BODIES[plans.CHAT]})
    await w.until(lambda: found, "receipt")
    receipt = found[0]
    is_offloaded, says_first = kv != NONE, kv == NEURON  # the token from Neuron's prefill is content
    assert (receipt["result"], receipt.get("offload", "")) == ("served", "ok" if is_offloaded else "")
    assert decodes == [int(says_first)] * 3
    assert says_first or receipt["ttft_ms"] - receipt["first_byte_ms"] > 2 * PAUSE_S * 1000
    assert not is_offloaded or receipt["transfer_ms"] > 2 * PAUSE_S * 1000
