"""Offers the blocks that a decoder lends (router/pool/load/lent.py) to the prefill of the session's next turn. To
strategies, the blocks count as held by instances that only prefill, minus the cost of the transfer, so that they are
priced like any other cached prefix.
"""

import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
import orjson

from router.contract.connectors import NIXL
from router.contract.values.json_value import Json, JsonObject
from router.contract.values.reading import read_json
from router.policy.types import Rates
from router.pool.endpoint import Endpoint
from router.pool.load import lent as lent_blocks
from router.pool.load.lent import KEPT_S, LEAST, LONGEST, LentBlocks
from router.prefix.blocks import TOKEN_BYTES, extra_keys, linked
from router.prefix.exact.index import NOTHING
from router.request.call import Call
from router.tokenize import salt

TOKEN_CHARS: Final = 8  # largest number of characters in a token's number
ASKED: Final = "return_token_ids"
_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})  # paths whose answers can report tokens


class Whereabouts(msgspec.Struct, frozen=True):
    """The data that an engine must report about its blocks before another engine can take them."""

    do_remote_decode: bool
    remote_block_ids: list[list[int]]  # by group of layers
    remote_num_tokens: int
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int


Read = TypeVar("Read")
Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Located(Protocol):
    """The location of KV that an answer reports (router/serving/answer/kv_location.py)."""

    where: bytes
    prompt_ids: bytes
    answer_ids: list[bytes]


def tells_ids(call: Call, decoder: Endpoint) -> bool:
    """Return whether the decoder should report its tokens: it lends blocks, and the next turn can be compared with
    them."""
    if (call.api_path, call.request.prompt.stream) not in decoder.lends or call.session is None:
        return False
    if call.prediction.prompt_tokens * TOKEN_CHARS > LONGEST:
        return False
    return bool(call.prediction.block_hashes) and call.request.prompt.document.get(ASKED, True) is True


def learn(call: Call, located: Located) -> None:
    """Note the location of the answer's blocks, and the tokens that they hold."""
    decoder, blocks = call.pool.endpoints.get(call.instance), _read(located.where, Whereabouts)
    if decoder is None or blocks is None or not blocks.do_remote_decode:
        return
    if call.api_path in _PATHS:
        decoder.lends.add((call.api_path, call.request.prompt.stream))
    if call.session is None or not located.prompt_ids:
        return
    tokens, groups = blocks.remote_num_tokens, blocks.remote_block_ids
    words = [word for ids in (located.prompt_ids, *located.answer_ids) for word in _read(ids, list[Word]) or ()]
    size = (decoder.feed.block_size if decoder.feed is not None else 0) or decoder.block_size
    # Layers with windows or states have separate groups, which do not match a shorter prefix.
    if len(groups) != 1 or len(groups[0]) != -(-tokens // size) or len(words) < tokens:
        return
    hashes = _hashes(call, words[:tokens], size)
    kept = LentBlocks(decoder.id, decoder.epoch, size, hashes, located.where, time.monotonic())
    call.pool.lendings.keep(call.session, kept)


def _read(raw: bytes, kind: type[Read]) -> Read | None:
    """Read what an engine reports about its KV; None for anything else."""
    try:
        return read_json(raw, kind)
    except msgspec.DecodeError:
        return None


def _hashes(call: Call, words: Sequence[int], size: int) -> Sequence[int]:
    state, whole = call.pool.kv_event_state, len(words) // size
    if state.known is None:
        return ()
    salted = salt.of(call.request.prompt.document)
    extras = extra_keys(call.adapter, salted, whole)
    tokens = array("I", words[: whole * size]).tobytes()
    assert len(tokens) == whole * size * TOKEN_BYTES  # noqa: S101 - as the index counts them
    return array("Q", linked(tokens, size, state.known.seed, extras))


def lent(call: Call) -> tuple[LentBlocks, int] | None:
    """Return the blocks lent to the request's session, and the number of the request's tokens that they hold."""
    blocks = call.pool.lendings.by_session.get(call.session or "")
    if blocks is None:
        return None
    decoder = call.pool.endpoints.get(blocks.decoder)
    if decoder is None or decoder.epoch != blocks.epoch or decoder.asleep or decoder.is_suspect:
        return None
    if time.monotonic() - blocks.at > decoder.lends_s or not decoder.takes_requests:
        return None
    hashes = next((hashes for size, hashes in call.prediction.block_hashes if size == blocks.size), ())
    tokens = blocks.shared(hashes)
    return (blocks, tokens) if tokens >= LEAST else None


def priced(call: Call, held: Mapping[str, int], rates: Rates) -> Mapping[str, int]:
    """Return held tokens by instance, including lent tokens at instances that can compute the prompt for a decoder."""
    found = lent(call)
    if found is None:
        return held
    blocks, tokens = found
    takers = (
        name
        for name, endpoint in call.pool.endpoints.items()
        if endpoint.role == "prefill" and endpoint.connector == NIXL and endpoint.takes_lent and name != blocks.decoder
    )
    return lent_blocks.priced(held, tokens, takers, rates)


class LentOffer(NamedTuple):
    where: JsonObject  # parameters of the prefill
    tokens: int  # tokens to transfer; 0: the decoder is only asked to release the blocks
    blocks: LentBlocks


def offer(call: Call, prefiller: Endpoint) -> LentOffer | None:
    """Take the session's blocks for a prefill, which transfers them, or releases them if computing is as fast. Taking
    blocks that it already holds makes an engine release them; if it holds none of them, there is no offer.
    """
    found = lent(call) if prefiller.takes_lent else None
    if found is None or call.session is None or prefiller.id == found[0].decoder:
        return None
    blocks, tokens = found
    held = call.prediction.exactly.get(prefiller.id, NOTHING)[0]
    moved, taken = lent_blocks.share(tokens, held, blocks.size, call.pool.rates)
    if not taken:
        return None
    call.pool.lendings.take(call.session)
    return LentOffer(_beginning(blocks, taken), moved, blocks)


def _beginning(blocks: LentBlocks, tokens: int) -> JsonObject:
    """Return the location of the first blocks: the engine takes the end of the list that it receives."""
    where: JsonObject = orjson.loads(blocks.where)
    (ids,) = cast(list[list[Json]], where["remote_block_ids"])
    return where | {"remote_block_ids": [ids[: tokens // blocks.size]], "remote_num_tokens": tokens}


def taken(call: Call, blocks: LentBlocks) -> None:
    """Note that the blocks were available, so that a decoder that once lacked blocks is trusted again."""
    decoder = call.pool.endpoints.get(blocks.decoder)
    if decoder is not None:
        decoder.lends_s = min(2 * decoder.lends_s, KEPT_S)


def refused(call: Call, blocks: LentBlocks) -> None:
    """Note that the blocks were released earlier than expected."""
    decoder = call.pool.endpoints.get(blocks.decoder)
    if decoder is not None:
        decoder.lends_s = min(decoder.lends_s, time.monotonic() - blocks.at)


def unused(call: Call, blocks: LentBlocks) -> None:
    """Keep the blocks for the session again if no engine has taken them, unless the session has newer blocks by now."""
    if call.session is not None and call.session not in call.pool.lendings.by_session:
        call.pool.lendings.keep(call.session, blocks)
