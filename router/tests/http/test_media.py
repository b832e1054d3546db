"""For audio and images, forms reach the engine byte for byte, and speech is streamed back as it is generated."""

import asyncio
import hashlib
import random
from typing import Any

import httpx

from router.contract.values.json_value import JsonObject
from router.tests.engine import Engine, Received, Writer, reply, write_chunk, write_head
from router.tests.test_aliases import known

TRANSCRIPTIONS = "/v1/audio/transcriptions"
HEARD = {"text": "hello", "usage": {"type": "duration", "seconds": 7}}


def encoded(form: Any) -> tuple[bytes, str]:
    """Return (body, content type)."""
    request = httpx.Request("POST", "http://x", files=form)
    return request.read(), request.headers["content-type"]


async def test_a_file_arrives_unchanged(world: Any) -> None:
    w = await world(reply(HEARD))
    audio = random.Random(1).randbytes(25_000_000)
    form = {"model": (None, "llama"), "file": ("a.wav", audio, "audio/wav")}
    body, kind = encoded(form)
    response = await w.client.post(TRANSCRIPTIONS, content=body, headers={"content-type": kind})
    assert (response.status_code, response.json()) == (200, HEARD)
    received = w.engines[0].received[0]
    assert hashlib.sha256(received.body).digest() == hashlib.sha256(body).digest()
    assert received.headers["content-type"] == kind
    receipt: JsonObject = await w.receipt(response)
    assert (receipt["prompt_tokens"], receipt["endpoint"]) == (0, TRANSCRIPTIONS)


async def test_an_ambiguous_form_is_refused(world: Any) -> None:
    w = await world(reply(HEARD))
    form = [("model", (None, "llama")), ("model", (None, "other")), ("file", ("a.wav", b"x"))]
    response = await w.client.post(TRANSCRIPTIONS, files=form)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_multipart")
    assert w.engines[0].received == []
    other = await w.client.post(TRANSCRIPTIONS, files={"model": (None, "other"), "file": ("a.wav", b"x")})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_form_that_is_also_json_is_refused(world: Any) -> None:
    w = await world(reply(HEARD))
    body = b'{"model":"llama","x":"&model=other&kv_transfer_params=x"}'
    kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    response = await w.client.post(TRANSCRIPTIONS, content=body, headers=kind)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_multipart")
    assert not w.engines[0].received


async def test_the_form_sent_to_the_engine_of_an_alias_holds_the_engines_model_name(world: Any) -> None:
    w = await world(reply(HEARD))
    await known(w, {"whisper": {"pool": "demo"}})
    form = {"file": ("a.wav", b"\0whisper\0", "audio/wav"), "model": (None, "whisper")}
    body, kind = encoded(form)
    assert (await w.client.post(TRANSCRIPTIONS, content=body, headers={"content-type": kind})).status_code == 200
    assert w.engines[0].received[0].body == body.replace(b"\r\n\r\nwhisper\r\n", b"\r\n\r\nllama\r\n")


async def test_speech_is_streamed(world: Any) -> None:
    async def speak(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: audio/wav", "transfer-encoding: chunked")
        write_chunk(writer, b"first")
        await engine.release.wait()
        write_chunk(writer, b"last")
        writer.write(b"0\r\n\r\n")

    w = await world(speak)
    body = {"model": "llama", "input": "hello", "voice": "alloy"}
    async with asyncio.timeout(10), w.client.stream("POST", "/v1/audio/speech", json=body) as response:
        parts = response.aiter_raw()
        assert await anext(parts) == b"first"
        w.engines[0].release.set()
        assert b"".join([part async for part in parts]) == b"last"
