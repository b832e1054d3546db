"""An instance that only decodes never gets a request without its KV; prompts go to instances that compute them."""

import pytest

from router.tests.flows.conftest import Build, Pair

ROLES = ("prefill", "decode")
WITHOUT_KV = 'prompt_tokens_by_source_total{model_name="llama",engine="0",source="local_compute"'


def computed(world: Pair) -> float:
    """Return the prompt tokens that the decoder computed itself: at least the last one of each prompt."""
    return world.sims[1].figure(WITHOUT_KV)


async def test_a_policy_that_never_offloads_explains_why_no_instance_serves(pair: Build) -> None:
    world = await pair("nixl", ROLES, flow__heavy="colocated")
    response = await world.ask()
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "no_instance_ready")
    assert "1 of 2: it decodes what others have computed, and the policy never offloads" in error["message"]
    assert "1 of 2: it computes prompts for others" in error["message"]
    assert response.headers["retry-after"]
    assert [sim.figure("request_success_total") for sim in world.sims] == [0, 0]


async def test_short_prompts_are_offloaded_too(pair: Build) -> None:
    world = await pair("nixl", ROLES)
    response = await world.ask("a few words that are warm " * 20)
    assert (response.status_code, response.headers["x-weir-flow"]) == (200, "offload_nixl")
    assert computed(world) <= 1
    await world.nothing_is_left()


@pytest.mark.parametrize(("given", "why"), [({"n": 2}, "several answers to one prompt"), ({"echo": True}, "echo")])
async def test_a_request_that_cannot_be_offloaded_is_refused_with_the_reason(
    pair: Build, given: dict[str, object], why: str
) -> None:
    world = await pair("nixl", ROLES)
    response = await world.ask(**given)
    assert response.status_code == 503
    assert f"this request cannot be offloaded: {why}" in response.json()["error"]["message"]
    assert world.sims[1].figure("request_success_total") == 0


async def test_requests_that_generate_nothing_go_to_an_instance_that_computes_prompts(pair: Build) -> None:
    world = await pair("nixl", ROLES)
    response = await world.client.post("/tokenize", json={"model": "llama", "prompt": "hello"})
    assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-0")


async def test_a_prompt_without_a_prefill_instance_is_an_error_and_not_sent_to_the_decoder(pair: Build) -> None:
    world = await pair("nixl", ROLES)
    world.sims[0].stop()
    response = await world.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "prefill_failed")
    assert world.sims[1].figure("request_success_total") == 0
    await world.nothing_is_left()


@pytest.mark.slow
async def test_kv_that_does_not_arrive_is_an_error_and_not_computed_by_the_decoder(pair: Build) -> None:
    world = await pair("nixl", ROLES, flags={"kv_hold_s": 0.01})  # freed before the decoder can fetch it
    response = await world.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "prefill_failed")
    assert "demo-1 did not get the KV of demo-0" in response.json()["error"]["message"]
    assert computed(world) == 0
    await world.nothing_is_left()


@pytest.mark.slow
async def test_after_a_dead_decoder_the_next_one_gets_new_kv(pair: Build) -> None:
    world = await pair("mooncake_p2p", roles=("prefill", "decode", "decode"))
    world.sims[1].stop()
    answers = [await world.receipt(await world.ask(f"{turn} " + "words " * 400)) for turn in range(6)]
    assert {(one["status"], one["flow"]) for one in answers} == {(200, "offload_mooncake_p2p")}
    await world.nothing_is_left()
