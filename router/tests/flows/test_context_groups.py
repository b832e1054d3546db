"""The router sees a DWDP group of four context GPUs behind one address, with a generation server of eight GPUs."""

import pytest

from router.tests.flows.conftest import Build

TOKENS = 7_373
ALONE_S = 0.5735  # time of such a prompt on an idle group, by the law used in the documentation and the twin


async def test_each_gpu_of_a_group_is_an_endpoint_that_computes_prompts_by_the_law_of_dwdp(pair: Build) -> None:
    flags = {"context_servers": "dwdp", "max_num_batched_tokens": 32_768, "time_scale": 20}
    world = await pair("trtllm", ("prefill", "decode"), flags)
    world.publish(demo_0={"dp": {"ranks": 4}})
    await world.until(lambda: len(world.pool.endpoints) == 5)
    used = set()
    for number in range(2):
        response = await world.ask(f"{number}abc" * TOKENS)
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
        receipt = await world.receipt(response)
        assert (receipt["flow"], receipt["offload"]) == ("offload_trtllm", "ok")
        used.add(receipt["prefill_instance"])
    assert used <= {f"demo-0#{rank}" for rank in range(4)}
    assert world.sims[0].figure("request_prefill_time_seconds_sum") == pytest.approx(2 * ALONE_S, rel=0.05)
    await world.nothing_is_left()
