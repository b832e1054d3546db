"""Asks an instance for the tokens of a prompt that only engines render: vLLM's `/render`, which needs
`--enable-scale-out`. Without an answer the approximate index serves.

Images and sound in the body are processed twice, without the engine's cache of them; those that the engine would fetch
from elsewhere are left alone."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from router.contract.redis.published import AS_SGLANG
from router.pool.endpoint import Endpoint
from router.prefix.blocks import TOKEN_BYTES, Medium
from router.request import predict
from router.request.call import Call
from router.serving.rendered_turns import RenderedTurns, TurnsOfRequest, continued
from router.tokenize.tokenizer import NotTokenized, packed
from router.upstream.errors import UpstreamError
from router.upstream.fetch import whole
from router.upstream.keyed import with_key

PATHS = frozenset(("/v1/chat/completions", "/v1/messages", "/v1/responses"))
LIMIT_S = 1.0  # more than a long prompt takes; the request waits for it
AGAIN_S = 60.0  # until an instance is asked again that does not render
LARGEST = 16 * 1024 * 1024  # bytes of an answer
LARGEST_READ = 4 * 1024 * 1024  # bytes of a body
LARGEST_ASKED = 2 * 1024 * 1024  # bytes that an engine is given, which are fewer for a further turn
WORTH_BYTES = 1024 * TOKEN_BYTES  # shorter beginnings are rendered again
# Quotes within a JSON text are escaped, so these are fields or types.
_MEDIA = re.compile(rb'"(?:input_)?(?:image|audio|video|file)(?:_url|_embeds|_data)?"\s*[:,}]')
_ELSEWHERE = re.compile(rb'"(?:(?:image_|audio_|video_|file_)?url|file_id)"\s*:\s*"(?!data:)')
_WITHOUT_TENSORS = b'{"mm_payload":"none",'
_HEAD = b"POST %b%b/render HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n"
Rendered = tuple[bytes, Sequence[Medium]]  # tokens, and the media among them


class Rendering:
    def __init__(self) -> None:
        self._turns = RenderedTurns()

    async def ask(self, call: Call) -> None:
        """Ask one instance, and take the tokens."""
        now = asyncio.get_running_loop().time()
        with_media = _MEDIA.search(call.request.body) is not None
        able = call.pool.endpoints.values() if _may_ask(call, with_media) else ()
        endpoint = _chosen(able, with_media, now)
        if endpoint is None:
            return
        try:
            async with asyncio.timeout(LIMIT_S):
                if with_media:
                    status, rendered = await _asked(call, endpoint, call.request.body, with_media=True)
                else:
                    status, rendered = await self._by_turns(call, endpoint, now)
        except (TimeoutError, UpstreamError):
            status, rendered = 0, None
        if rendered is not None:
            predict.take(call, *rendered)
            call.prediction.untokenized = ""
        elif status != 400:  # a fault of the request
            endpoint.renders_from[with_media] = now + AGAIN_S

    async def _by_turns(self, call: Call, endpoint: Endpoint, now: float) -> tuple[int, Rendered | None]:
        """Return the status and the prompt's tokens, of which the known ones are not rendered again."""
        turns = TurnsOfRequest(call.request.prompt.document, call.api_path, call.pool.name)
        known, since, tokens = self._turns.longest(turns.digests, now)
        if known and known == len(turns.digests):
            return 200, (tokens, ())
        made = await _continued(call, endpoint, turns, known, tokens) if len(tokens) >= WORTH_BYTES else None
        if made is None:
            since = now
            status, rendered = await _asked(call, endpoint, call.request.body)
            if rendered is None:
                return status, None
            made = rendered[0]
        if turns.digests:
            self._turns.keep(turns.digests[-1], since, made)
        return 200, (made, ())


async def _continued(call: Call, endpoint: Endpoint, turns: TurnsOfRequest, known: int, tokens: bytes) -> bytes | None:
    _, before = await _asked(call, endpoint, turns.short(known, known))
    _, after = await _asked(call, endpoint, turns.short(known)) if before is not None else (0, None)
    return None if before is None or after is None else continued(tokens, before[0], after[0])


def _may_ask(call: Call, with_media: bool) -> bool:
    body = call.request.body
    if call.api_path not in PATHS or call.pool.kv_event_state.reader_name.startswith(AS_SGLANG):
        return False
    return len(body) <= LARGEST_READ and not (with_media and (call.adapter or _ELSEWHERE.search(body)))


def _chosen(endpoints: Iterable[Endpoint], with_media: bool, now: float) -> Endpoint | None:
    routable = (each for each in endpoints if each.routable and not each.is_suspect)
    able = [each for each in routable if each.renders_from[with_media] <= now]
    return min(able, key=lambda each: each.requests, default=None)


async def _asked(
    call: Call, endpoint: Endpoint, body: bytes, *, with_media: bool = False
) -> tuple[int, Rendered | None]:
    """Return the status, and the tokens and media of a body."""
    if len(body) > LARGEST_ASKED:
        return 400, None
    upstream, lines = endpoint.upstream, call.request.forwarded
    if with_media:
        body = _WITHOUT_TENSORS + body[body.index(b"{") + 1 :]
    if endpoint.engine_key:
        lines = with_key(lines, endpoint.engine_key)
    head = _HEAD % (upstream.base, call.api_path.encode(), upstream.authority, lines, len(body))
    connection = await upstream.open(head, body, connect_timeout_s=LIMIT_S, first_byte_timeout_s=LIMIT_S)
    try:
        status, answer = connection.status, await whole(connection, LARGEST)
    finally:
        connection.release()
    return status, _rendered(answer) if status == 200 else None


def _rendered(answer: bytes) -> Rendered | None:
    """Return the prompt's tokens and the media among them; None if the answer has none."""
    try:
        given = orjson.loads(answer)
        ids = given["token_ids"]
        tokens = packed(ids) if isinstance(ids, list) else b""
        media = _media(given.get("features") or {}, len(tokens) // TOKEN_BYTES)
    except (ValueError, TypeError, KeyError, AttributeError, NotTokenized):
        return None
    return (tokens, media) if tokens else None


def _media(features: Any, length: int) -> Sequence[Medium]:
    """Return the media in the order of the prompt. Raise ValueError where they are not within it, one after another."""
    if not features:
        return ()
    names, places = features["mm_hashes"], features["mm_placeholders"]
    found = sorted(
        Medium(int(place["offset"]), int(place["length"]), str(name))
        for kind in names
        for name, place in zip(names[kind], places[kind], strict=True)
    )
    ends = [0, *(each.start + each.tokens for each in found)]
    if ends[-1] > length or any(each.start < end or each.tokens < 1 for each, end in zip(found, ends, strict=False)):
        raise ValueError(f"media at {ends} of {length} tokens")
    return found
