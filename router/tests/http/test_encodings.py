"""Compressed bodies are decompressed within the size limit; unknown encodings are refused."""

import gzip
import json
import zlib

import pytest

from router.http.body import MAX_BODY
from router.tests.http.test_own_errors import code_of

PLAIN = json.dumps({"model": "llama", "prompt": "hello " * 50_000}).encode()


async def send(w, body, encoding):
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    return await w.client.post("/v1/completions", content=body, headers=headers)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", gzip.compress(PLAIN)), ("deflate", zlib.compress(PLAIN)), ("GZIP", gzip.compress(PLAIN, 0))],
    ids=["gzip", "deflate", "stored in gzip"],
)
async def test_a_compressed_body_reaches_the_engine_unchanged(world, encoding, body):
    w = await world(None)
    assert (await send(w, body, encoding)).status_code == 200
    received = w.engines[0].received[0]
    assert received.body == PLAIN
    assert "content-encoding" not in received.headers


async def test_a_body_that_decompresses_beyond_the_limit_is_refused(world):
    w = await world(None)
    response = await send(w, gzip.compress(b" " * (MAX_BODY + 1)), "gzip")
    assert (response.status_code, code_of(response)) == (413, "body_too_large")


@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(PLAIN)[:-9], b""], ids=["plain", "cut", "empty"])
async def test_a_body_that_cannot_be_decompressed_is_refused(world, body):
    response = await send(await world(None), body, "gzip")
    assert (response.status_code, code_of(response)) == (400, "invalid_encoding")


async def test_an_unsupported_encoding_is_refused_by_name(world):
    response = await send(await world(None), b"x", "zstd")
    assert (response.status_code, code_of(response)) == (415, "unsupported_encoding")
    assert "gzip" in response.json()["error"]["message"]


async def test_identity_does_not_count_as_an_encoding(world):
    assert (await send(await world(None), PLAIN, "identity")).status_code == 200
