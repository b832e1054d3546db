"""Asks an instance for the tokens of a prompt that only engines can render, through vLLM's `/render`, which requires
`--enable-scale-out`. Without an answer, the approximate index is used. Images and sound in the body are processed
twice, without the engine's cache for media; conversations are not rendered if the engine would fetch their media from
elsewhere.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from router.contract.redis.published import AS_SGLANG
from router.pool.endpoint import Endpoint
from router.prefix.blocks import TOKEN_BYTES, Medium
from router.prefix.media import media_in
from router.request import predict
from router.request.call import Call
from router.serving.prompt.rendered_turns import RenderedTurns, TurnsOfRequest, continued
from router.tokenize.tokenizer import NotTokenized, packed
from router.upstream.errors import AnswerStalled, FirstByteTimeout, UpstreamError
from router.upstream.fetch import whole
from router.upstream.keyed import with_key

PATHS = frozenset(("/v1/chat/completions", "/v1/messages", "/v1/responses"))
LIMIT_S = 1.0  # a long prompt takes less; the request waits for the answer
AGAIN_S = 60.0  # time after which an instance that does not render is asked again
LARGEST = 16 * 1024 * 1024  # bytes of an answer
LARGEST_READ = 4 * 1024 * 1024  # bytes of a body
LARGEST_ASKED = 2 * 1024 * 1024  # bytes sent to an engine; a further turn needs fewer
WORTH_BYTES = 1024 * TOKEN_BYTES  # bytes of tokens; shorter beginnings are rendered again
_LOST = 0  # used as the status when there is no connection
_SLOW = -1
_UNABLE = frozenset((_LOST, 404, 405, 501))
_HEAD = b"POST %b%b/render HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n"
Rendered = tuple[bytes, Sequence[Medium]]  # tokens, and the media among them


class Rendering:
    def __init__(self) -> None:
        self._turns = RenderedTurns()

    async def ask(self, call: Call) -> None:
        """Ask one instance, and use its tokens."""
        if not _may_ask(call):
            return
        with_media, is_elsewhere = media_in(call.request.prompt.document)
        if with_media and (call.adapter or is_elsewhere):
            return
        now, key = asyncio.get_running_loop().time(), (call.key.id if call.key is not None else "", with_media)
        endpoint = _chosen(call.pool.endpoints.values(), key, now)
        if endpoint is None:
            return
        status, rendered = await self._answer(call, endpoint, with_media, now)
        if rendered is not None:
            predict.take(call, *rendered)
            call.prediction.untokenized = ""
        elif _does_not_render(call, status):
            endpoint.renders_from[with_media] = now + AGAIN_S
        elif status != 400:  # 400 is the request's own fault
            endpoint.renders_for[key] = now + AGAIN_S

    async def _answer(
        self, call: Call, endpoint: Endpoint, with_media: bool, now: float
    ) -> tuple[int, Rendered | None]:
        try:
            async with asyncio.timeout(LIMIT_S):
                if not with_media:
                    return await self._by_turns(call, endpoint, now)
                # written out, because the last of two equal fields counts
                return await _asked(
                    call, endpoint, orjson.dumps({**call.request.prompt.document, "mm_payload": "none"})
                )
        except (TimeoutError, FirstByteTimeout, AnswerStalled):
            return _SLOW, None
        except UpstreamError:
            return _LOST, None
        except orjson.JSONEncodeError:  # the serializer supports less depth than the parser
            return 400, None

    async def _by_turns(self, call: Call, endpoint: Endpoint, now: float) -> tuple[int, Rendered | None]:
        """Return the status and the prompt's tokens; known tokens are not rendered again."""
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
            if rendered[1]:  # known turns have no media, and neither does the part that is kept
                return status, rendered
            made = rendered[0]
        if turns.digests:
            self._turns.keep(turns.digests[-1], since, made)
        return 200, (made, ())


async def _continued(call: Call, endpoint: Endpoint, turns: TurnsOfRequest, known: int, tokens: bytes) -> bytes | None:
    try:
        bodies = turns.short(known, known), turns.short(known)
    except orjson.JSONEncodeError:
        return None
    _, before = await _asked(call, endpoint, bodies[0])
    _, after = await _asked(call, endpoint, bodies[1]) if before is not None else (0, None)
    if before is None or after is None or before[1] or after[1]:
        return None
    return continued(tokens, before[0], after[0])


def _may_ask(call: Call) -> bool:
    if call.api_path not in PATHS or len(call.request.body) > LARGEST_READ:
        return False
    return not call.pool.kv_event_state.reader_name.startswith(AS_SGLANG)


def _does_not_render(call: Call, status: int) -> bool:
    """Return whether the engine gives this status to every request; another cause may be an unknown model name in the
    request.
    """
    by_name = call.adapter or "previous_response_id" in call.request.prompt.document
    return status in _UNABLE and not (status == 404 and by_name)


def _chosen(endpoints: Iterable[Endpoint], key: tuple[str, bool], now: float) -> Endpoint | None:
    routable = (each for each in endpoints if each.routable and not each.is_suspect)
    able = [each for each in routable if max(each.renders_from[key[1]], each.renders_for.get(key, 0.0)) <= now]
    return min(able, key=lambda each: each.requests, default=None)


async def _asked(call: Call, endpoint: Endpoint, body: bytes) -> tuple[int, Rendered | None]:
    """Return the status for a body, with its tokens and media."""
    if len(body) > LARGEST_ASKED:
        return 400, None
    upstream, lines = endpoint.upstream, call.request.forwarded
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
    """Return the media in the order of the prompt. Raise ValueError if they overlap or exceed it."""
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
