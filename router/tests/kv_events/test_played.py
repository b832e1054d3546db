"""Compare the hits that an index predicts with those of vLLM's KV cache manager and SGLang's radix cache
(play_managers.py, play_sglang.py).
"""

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import zmq

from router.kv_events.batch import decode
from router.kv_events.feed import Feed
from router.kv_events.followed_groups import CHUNKS
from router.kv_events.sources import discover
from router.pool.kv_event_state import KvEventState
from router.prefix.blocks import Medium
from router.prefix.exact.groups import ALL, FIRST, Parts, rules_of
from router.prefix.exact.index import ExactIndex
from router.prefix.shortfall import SURE, Shortfall, SpeculationRule
from router.request import predict
from router.request.call import Prediction
from router.tests.kv_events import play_sglang
from router.tests.kv_events.play_managers import GOLDEN, GOLDEN_AHEAD, MODELS
from router.tokenize.tokenizer import packed

PLAYED = json.loads(GOLDEN.read_text())
AHEAD = json.loads(GOLDEN_AHEAD.read_text())
OF_SGLANG = json.loads(play_sglang.GOLDEN.read_text())
SEED = 1
DROPPING = {"MTP": FIRST, "EAGLE": ALL}


@pytest.fixture(scope="module")
def context() -> "Iterator[zmq.Context[zmq.Socket[bytes]]]":
    with zmq.Context() as context:
        yield context


def followed(
    log: str, context: "zmq.Context[zmq.Socket[bytes]]", chunk: int = 0, learnt: SpeculationRule | None = None
) -> tuple[Feed, list[tuple[int, int]]]:
    """Return (predicted, actual) cached tokens of each request. `learnt`: the rule of a speculating engine."""
    feed, pairs = Feed("a", lambda: discover(""), ExactIndex(SEED), context, chunk=chunk), []
    for kind, *rest in msgpack.unpackb(zlib.decompress(base64.b85decode(log))):
        if kind == "events":
            feed._tell(decode(rest[0]))
            continue
        tokens, *more, hit = rest
        media = [Medium(*each) for each in more[0]] if more and isinstance(more[0], list) else ()
        size, hashes, parts = hashed(feed, tokens, media, "" if media else "".join(more))
        rules = rules_of({learnt.rule: 1} if learnt is not None else {})
        predicted = sum(feed._index.match(hashes, size, parts, rules).get("a", ()))
        if learnt is not None and (by_rule := feed._index.by_rule("a", hashes, size, parts)):
            assert by_rule[learnt.rule] == predicted
            learnt.add(by_rule, hit)
        pairs.append((predicted, hit))
    feed._why = ""
    return feed, pairs


def hashed(feed: Feed, tokens: list[int], media: Sequence[Medium], salt: str) -> tuple[int, Sequence[int], Parts]:
    """Return the block size, and the hashes of a prompt's blocks and of their parts, for a request."""
    state = KvEventState()
    state.index, state.sizes, state.ahead = feed._index, (feed.block_size or 1,), feed.ahead
    state.parts = feed.parts
    asked = SimpleNamespace(prompt=SimpleNamespace(document={"cache_salt": salt} if salt else {}))
    call: Any = SimpleNamespace(
        pool=SimpleNamespace(kv_event_state=state), request=asked, prediction=Prediction(), adapter="", api_path=""
    )
    predict.take(call, packed(tokens), media)
    ((size, hashes),) = call.prediction.block_hashes
    return size, hashes, call.prediction.parts.get(size, {})


@pytest.mark.parametrize("model", [model for model in MODELS if not DROPPING.keys() & model.split("; ")])
def test_a_hit_is_as_long_as_all_groups_of_layers_allow(model: str, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    (chunk, *_), *_ = [tokens for kind, _, *tokens in MODELS[model] if kind == "chunk"] or [[0]]
    feed, pairs = followed(PLAYED[model], context, chunk)
    assert [predicted for predicted, _ in pairs] == [hit for _, hit in pairs]
    assert sum(hit > 0 for _, hit in pairs) > 12
    assert ("layers" in feed.trouble, feed.but_for) == (False, "")


@pytest.mark.parametrize("model", [model for model in MODELS if DROPPING.keys() & model.split("; ")])
def test_a_speculating_engine_drops_blocks_before_its_groups_limit_each_other(
    model: str, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    learnt = SpeculationRule()
    feed, pairs = followed(PLAYED[model], context, learnt=learnt)
    if not feed._groups.needs.needs:  # each hit is one block shorter
        assert {predicted - hit for predicted, hit in pairs if predicted} == {feed.block_size}
        return
    wrong = [number for number, (predicted, hit) in enumerate(pairs) if predicted != hit]
    assert (learnt.rule, len(wrong) in (SURE, SURE + 1)) == (DROPPING[model.split("; ")[1]], True)
    most = feed.block_size * feed._groups.needs.align * (2 if feed.parts else 1)
    assert sum(abs(predicted - hit) > most for predicted, hit in pairs) <= 1
    assert sum(hit > 0 for _, hit in pairs[wrong[-1] + 1 :]) > 2


def test_the_document_states_the_predictions_for_speculating_engines(
    context: "zmq.Context[zmq.Socket[bytes]]",
) -> None:
    """A last block that is computed again is learned as a shortfall of one block, or as a rule of several groups."""
    alike, rules = [], []
    for model in (model for model in PLAYED if DROPPING.keys() & model.split("; ")):
        feed, pairs = followed(PLAYED[model], context, learnt=SpeculationRule())
        if feed._groups.needs.needs:
            rules += [predicted == hit for predicted, hit in pairs]
            continue
        short = Shortfall()
        for predicted, hit in pairs:
            alike.append(max(0, predicted - short.tokens) == hit)
            short.add(predicted, hit, feed.block_size or 1)
    document = (Path(__file__).parents[3] / "docs/index-knows.md").read_text()
    assert f"| exact after four answers that are short alike | {sum(alike)} of {len(alike)} |" in document
    assert f"| exact after four or five wrong predictions | {sum(rules)} of {len(rules)} |" in document


@pytest.mark.parametrize("model", AHEAD)
def test_no_block_is_dropped_if_the_hashes_of_blocks_cover_the_next_token(
    model: str, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    feed, pairs = followed(AHEAD[model], context)
    assert [predicted for predicted, _ in pairs] == [hit for _, hit in pairs]
    assert (feed.ahead, sum(hit > 0 for _, hit in pairs) > 12) == (1, True)


def test_with_chunks_of_unknown_length_no_prediction_exceeds_the_hit(
    context: "zmq.Context[zmq.Socket[bytes]]",
) -> None:
    """Events do not report the length of a chunk, and a hit at its end needs nothing before it."""
    feed, pairs = followed(PLAYED["full, chunk"], context)
    assert all(predicted <= hit for predicted, hit in pairs)
    assert sum(predicted == hit for predicted, hit in pairs) > 30
    assert feed.but_for == CHUNKS


@pytest.mark.parametrize("model", ["full", "full, pages of one token"])
def test_prompts_with_and_without_salts_are_predicted_as_sglang_caches_them(
    model: str, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    _, pairs = followed(OF_SGLANG[model], context)
    assert [predicted for predicted, _ in pairs] == [hit for _, hit in pairs]
    assert (len(pairs), sum(hit > 0 for _, hit in pairs) > 12) == (36, True)


@pytest.mark.parametrize(("model", "same"), [("full, window", 25), ("full, state", 21)])
def test_sglangs_events_report_full_attention_only(
    model: str, same: int, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    feed, pairs = followed(OF_SGLANG[model], context)
    assert all(predicted >= hit for predicted, hit in pairs)
    assert sum(predicted == hit for predicted, hit in pairs) == same
    assert not feed.names_layers


def test_an_engine_that_clears_its_cache_leaves_nothing_of_any_group(
    context: "zmq.Context[zmq.Socket[bytes]]",
) -> None:
    feed, _ = followed(PLAYED["full, state, window"], context)
    index = feed._index
    assert index.held_by("a") > index.blocks("a")[0] > 0
    index.clear("a")
    while index.sweep(1_000):
        pass
    assert (len(index), index.held, index.held_by("a"), index.stretches([1, 2])) == (0, 0, 0, [])
