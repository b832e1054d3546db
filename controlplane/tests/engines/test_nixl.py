"""A prompt computed on one vLLM and decoded on another, with its KV transferred by NIXL."""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest

from controlplane.tests.engines.fleet import CODE, LONG, Fleet, running

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
MOVED = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"}'


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with running(CODE / "examples/cpu-nixl.yaml") as made:
        made.offload()
        yield made


class Answer(NamedTuple):
    prompt: str
    said: str
    decoder: str
    prompt_tokens: int
    moved_tokens: float


def offloaded(fleet: Fleet) -> Answer:
    """Return the first of several prompts that is offloaded: a transfer between two processes begins with a
    handshake, which may time out on a busy machine, and the router then sends everything to one of them."""
    numbers = count()  # a new prompt each time, as a cached one is not heavy
    found: list[Answer] = []

    def is_offloaded() -> bool:
        before = {name: fleet.metric(name, MOVED) for name in fleet.instances()}
        prompt = f"move {next(numbers)} {LONG}"
        said, usage, headers = fleet.ask(prompt)
        if headers["x-weir-flow"] == "offload_nixl":
            decoder = headers["x-weir-instance"]
            moved = fleet.metric(decoder, MOVED) - before[decoder]
            found.append(Answer(prompt, said, decoder, usage["prompt_tokens"], moved))
        return bool(found)

    fleet.until(is_offloaded, "an offload", 120)
    return found[0]


def test_an_offloaded_answer_equals_the_answer_of_a_single_engine(fleet: Fleet) -> None:
    answer = offloaded(fleet)
    decoder = answer.decoder
    assert answer.moved_tokens == answer.prompt_tokens
    assert fleet.metric(decoder, "vllm:nixl_num_failed_transfers_total") == 0
    other = next(name for name in fleet.instances() if name != decoder)
    alone, usage, _ = fleet.ask(answer.prompt, url=fleet.one(other)["url"])
    assert fleet.cached(usage) > 1500  # it computed the prompt
    assert answer.said == alone
    fleet.until(lambda: fleet.one(decoder)["sample"]["cached_by_source"].get("p2p", 0) > 1500, "the hits", 60)
    assert "Hits, p2p" in fleet.page(f"/fleet/instances/{decoder}/")


def test_without_the_prefill_instance_the_decoder_computes_the_prompt_itself(fleet: Fleet) -> None:
    name, epoch = "tiny-1", fleet.one("tiny-1")["epoch"]
    fleet.kill(name)
    said, _, headers = fleet.ask("alone " + LONG)
    assert len(said) == 16
    assert headers["x-weir-instance"] == "tiny-0"
    fleet.note("NIXL: kill -9 of one of the pair: replaced", fleet.until(fleet.is_replaced(name, epoch), "a new pair"))
    offloaded(fleet)


def test_a_prompt_that_one_vllm_holds_is_pulled_from_it_by_the_other(fleet: Fleet) -> None:
    offloaded(fleet)  # measures how fast prompts are computed
    fleet.policy(**{"strategy.name": "round_robin", "flow.heavy": "colocated", "flow.pull_gb_per_s": 100})
    numbers = count()
    found: list[tuple[str, str, list[int], dict[str, str], float]] = []

    def is_pulled() -> bool:
        prompt = f"pull {next(numbers)} {LONG}"
        holder = fleet.ask(prompt)[2]["x-weir-instance"]
        puller = next(name for name in fleet.instances() if name != holder)
        before = fleet.metric(puller, MOVED)
        asked = prompt + " and then"
        said, _, headers = fleet.ask(asked)
        found.append((asked, holder, said, headers, fleet.metric(puller, MOVED) - before))
        return headers["x-weir-flow"] == "offload_nixl"

    fleet.until(is_pulled, "a pull", 120)
    asked, holder, said, headers, moved = found[-1]
    assert moved > 1500
    alone, usage, _ = fleet.ask(asked, url=fleet.one(holder)["url"])
    assert fleet.cached(usage) > 1500  # it computed only the end of the prompt
    assert said == alone
    receipt, _ = fleet.rest("GET", f"/receipts/{headers['x-request-id']}")
    assert (receipt["prefill_instance"], receipt["offload"]) == (holder, "ok")
    assert receipt["pull_ms"] > 0
    fleet.note(
        f"NIXL: a pull, predicted to take {receipt['pull_ms']:.0f} ms; its prefill", receipt["prefill_ms"] / 1000
    )
