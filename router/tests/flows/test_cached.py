"""With every connector, an offload's cached tokens are those that the prefill instance reports."""

from collections.abc import Callable

import pytest

from router.contract.connectors import CONNECTORS, MOONCAKE_STORE, NEURON
from router.policy.value import replace
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload
from router.serving.answer.learning import learn
from router.tests.conftest import instance
from router.tests.flows.conftest import PROMPT, Build, Sim
from router.tests.forked import STORE
from router.upstream.answer.used import Usage

CACHED = 1984  # whole blocks of the prompt
OTHERWISE = {NEURON: 0, MOONCAKE_STORE: 1999}  # Neuron keeps no prefix; the store also has the last block


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kv", sorted(CONNECTORS))
async def test_a_prompts_cached_tokens_are_those_of_the_instance_that_computed_it(
    pair: Build, sims: Callable[..., Sim], kv: str, streamed: bool
) -> None:
    flags = {"kv_store": sims("store", module=STORE).url} if kv == MOONCAKE_STORE else {}
    world = await pair(kv, ("prefill", "decode"), flags=flags)
    version = world.published.policy(strategy="round_robin_pd")
    await world.until(lambda: world.pool.version == version)
    receipts = [await world.receipt(await world.ask(PROMPT, stream=streamed)) for _ in range(2)]
    assert [(one["flow"], one["offload"]) for one in receipts] == [(f"offload_{kv}", "ok")] * 2
    cached = OTHERWISE.get(kv, CACHED)
    assert [one["cached_tokens"] for one in receipts] == [0, cached]
    assert world.router.recorder.tokens()["demo", "cached"] == cached
    used = [line for line in (await world.client.get("/metrics")).text.splitlines() if 'kind="cached"' in line]
    assert f'weir_router_tokens_total{{kind="cached",pool="demo"}} {float(cached)}' in used


def ended(offload: Offload | None, decoder: Usage) -> tuple[Usage | None, Endpoint]:
    endpoint = Endpoint(instance("demo-1", "http://127.0.0.1:9"))
    call = Call("r", "/v1/completions", 0.0, 0.0)
    call.outcome.offload, call.outcome.usage = offload, decoder
    learn(call, endpoint)
    return call.outcome.usage, endpoint


TOLD = Usage(prompt_tokens=4000, cached_tokens=3999, output_tokens=10, cached_tiers=(3999, 0, 0))


@pytest.mark.parametrize(
    ("prefill", "cached"),
    [(Usage(4000, 0, 1), 0), (Usage(4000, 512, 1), 512), (Usage(4000, None, 1), None), (None, None)],
)
@pytest.mark.parametrize("kv", sorted(CONNECTORS))
def test_tokens_that_the_decoder_fetched_do_not_count_as_cached(
    kv: str, prefill: Usage | None, cached: int | None
) -> None:
    used, endpoint = ended(Offload(kv, "demo-0", "ok", prefill_usage=prefill), TOLD)
    assert used == replace(TOLD, cached_tokens=cached, cached_tiers=None)
    assert endpoint.reports_cached


@pytest.mark.parametrize("outcome", ["fallback", "ineligible", "failed"])
def test_cached_tokens_are_the_decoders_if_it_computed_the_prompt_itself(outcome: str) -> None:
    assert ended(Offload("nixl", "demo-0", outcome, prefill_usage=Usage(4000, 0, 1)), TOLD)[0] == TOLD
    assert ended(None, TOLD)[0] == TOLD


def test_a_missing_count_is_zero_from_an_engine_that_reports_cached_tokens() -> None:
    endpoint = Endpoint(instance("demo-0", "http://127.0.0.1:9"))
    assert [endpoint.cached_tokens(told) for told in (None, 7, None)] == [None, 7, 0]
