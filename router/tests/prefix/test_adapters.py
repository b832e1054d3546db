"""Adapters and salts separate caches: an engine's events and its clients' requests get equal hashes."""

from array import array
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from router.kv_events.batch import BlocksStored, decode
from router.pool.kv_event_state import KvEventState
from router.pool.pool import Pool
from router.prefix.blocks import Medium, chain_salt, extra_keys, linked, media_keys
from router.prefix.chain import PromptChains, chunk_hashes
from router.prefix.exact.index import ExactIndex
from router.request.call import Prediction
from router.request.predict import held as predicted
from router.request.predict import take
from router.tokenize import salt
from router.tokenize.sim import SimTokenizer

SIZE, SEED = 4, 7
TOKENS = list(range(12))
PROMPT = array("I", TOKENS).tobytes()


def stored(extra_keys: list[list[str] | None], **named: object) -> BlocksStored:
    """Return the event by which vLLM publishes three blocks of a request."""
    event = {
        "type": "BlockStored",
        "block_hashes": [1, 2, 3],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": SIZE,
        "medium": "GPU",
        "extra_keys": extra_keys,
        **named,
    }
    (made,) = decode(msgpack.packb([1.0, [event]])).events
    assert isinstance(made, BlocksStored)
    return made


EVENTS = {
    ("", ""): stored([None, None, None]),
    ("sql", ""): stored([["sql"], ["sql"], ["sql"]], lora_id=1, lora_name="sql"),
    ("chat", ""): stored([["chat"], ["chat"], ["chat"]], lora_id=2, lora_name="chat"),
    ("", "tenant"): stored([["tenant"], None, None]),
    ("sql", "tenant"): stored([["sql", "tenant"], ["sql"], ["sql"]], lora_id=1, lora_name="sql"),
}


@pytest.mark.parametrize("asked", EVENTS)
@pytest.mark.parametrize("held", EVENTS)
def test_a_request_finds_the_blocks_of_its_adapter_and_salt_and_no_others(
    held: tuple[str, str], asked: tuple[str, str]
) -> None:
    index, event = ExactIndex(SEED), EVENTS[held]
    index.store("a", event.names, event.parent, event.tokens, event.block_size, event.tier, event.extras)
    found = index.match(linked(PROMPT, SIZE, SEED, extra_keys(*asked, 3)), SIZE)
    assert sum(found.get("a", (0, 0, 0))) == (len(TOKENS) if held == asked else 0)


GOLDEN = {
    ("", ""): [5015081111780054312, 6941427007004437085, 17459033172291230451],
    ("sql", ""): [7490984130218939896, 16717577737811887853, 4713902785089072970],
    ("sql", "tenant"): [4851857373978008662, 6045061046679618146, 15319741851191798152],
}


@pytest.mark.parametrize(("keyed", "hashes"), GOLDEN.items())
def test_the_hashes_on_both_sides_never_change(keyed: tuple[str, str], hashes: list[int]) -> None:
    assert linked(PROMPT, SIZE, SEED, extra_keys(*keyed, 3)) == hashes
    assert linked(PROMPT, SIZE, SEED, EVENTS[keyed].extras) == hashes


def test_events_that_only_number_their_adapter_match_no_request() -> None:
    numbered = stored([], lora_id=1)
    known = linked(PROMPT, SIZE, SEED, numbered.extras)
    assert not {*known} & {*linked(PROMPT, SIZE, SEED, ()), *linked(PROMPT, SIZE, SEED, extra_keys("sql", "", 3))}


def test_the_approximate_index_separates_adapters_and_salts_too() -> None:
    chains, prompt = PromptChains(), b"x" * 20_000
    base = chains.hashes(prompt, chain_salt("", ""))
    assert list(base) == chunk_hashes(prompt)
    chunks = [set(base), *(set(chains.hashes(prompt, chain_salt(*keyed))) for keyed in list(EVENTS)[1:])]
    assert len(set.union(*chunks)) == sum(map(len, chunks))


@pytest.mark.parametrize(
    ("model", "adapter"),
    [("", ""), ("llama", ""), ("demo", ""), ("unheard-of", "unheard-of")],
)
def test_a_model_that_is_not_known_to_be_the_base_counts_as_an_adapter(model: str, adapter: str) -> None:
    pool = Pool("demo")
    pool.model = "llama"
    assert pool.adapter(model) == adapter


@pytest.mark.parametrize(
    ("given", "hashed"),
    [("tenant", "tenant"), (["tenant"], "tenant"), (["a", "b"], "a\0b"), (7, ""), ("", ""), (None, "")],
)
def test_the_salt_is_the_one_that_the_client_sent(given: object, hashed: str) -> None:
    assert salt.of({"cache_salt": given}) == hashed
    assert salt.of({}) == ""


@pytest.mark.parametrize(("api_path", "apart"), [("/v1/chat/completions", True), ("/v1/messages", False)])
def test_a_salt_that_an_engine_ignores_is_not_hashed_into_its_blocks(api_path: str, apart: bool) -> None:
    """SGLang ignores the salt of /v1/messages."""
    state = KvEventState()
    state.index, state.reader, state.sizes = ExactIndex(SEED), (reader := SimTokenizer()), (SIZE,)
    reader.unsalted = frozenset(("/v1/messages",))

    def hashes(**document: str) -> object:
        request = SimpleNamespace(prompt=SimpleNamespace(document=document))
        pool, made = SimpleNamespace(kv_event_state=state), SimpleNamespace()
        call: Any = SimpleNamespace(pool=pool, api_path=api_path, adapter="", request=request, prediction=made)
        take(call, PROMPT)
        return made.block_hashes

    assert (hashes(cache_salt="s") != hashes()) == apart


def test_a_block_hashes_its_images_after_its_adapter_and_before_its_salt() -> None:
    media = [Medium(3, 30, "cat"), Medium(33, 2, "dog"), Medium(70, 10, "cat")]
    keys = media_keys("ad", "s", 6, 16, media)
    assert [msgpack.unpackb(key) for key in keys] == [
        ["ad", ["cat", 3], "s"],
        ["ad", ["cat", -13]],
        ["ad", ["cat", -29], ["dog", 1]],
        ["ad"],
        ["ad", ["cat", 6]],
        ["ad"],
    ]
    assert media_keys("", "", 3, 16, [Medium(40, 1000, "a")])[:2] == [b"", b""]
    assert list(media_keys("ad", "s", 6, 16, ())) == list(extra_keys("ad", "s", 6))


def test_a_prompt_whose_blocks_get_parts_while_it_is_hashed_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is hashed in a thread, and meanwhile the first window of smaller blocks may be reported."""
    state, plain = KvEventState(), KvEventState.hashes
    state.index, state.sizes, state.believed_of_all = ExactIndex(SEED), (SIZE, 2 * SIZE), True

    def hashes(state: KvEventState, tokens: bytes, block_size: int, seed: int) -> Any:
        state.parts = (SIZE // 2,) if block_size > SIZE else ()
        return plain(state, tokens, block_size, seed)

    monkeypatch.setattr(KvEventState, "hashes", hashes)
    call: Any = SimpleNamespace(
        pool=SimpleNamespace(kv_event_state=state, endpoints={}),
        request=SimpleNamespace(prompt=SimpleNamespace(document={})),
        prediction=Prediction(),
        adapter="",
        api_path="",
    )
    take(call, PROMPT)
    assert call.prediction.parts.keys() == {2 * SIZE}
    assert predicted(call) == ({}, None)
