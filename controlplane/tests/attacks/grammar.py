"""Hostile requests from a seed: headers and bodies that are well-formed except in a few places."""

import gzip
import json
import zlib

PATHS = [
    "/", "/healthz", "/v1/chat/completions", "/v1/models", "/api/v1/policies", "/login", "/ws/live", "/metrics",
    "//", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../manage.py", "/static/%2e%2e/manage.py",
    "/%00", "/\xff", "*", "http://127.0.0.1/healthz",
    "/" + "a" * 9_000, "/?" + "&".join(f"a{i}=1" for i in range(2_000)),
]  # fmt: skip
METHODS = [
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "PRI",
    "get",
    "G\tT",
    "X" * 300,
]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1 ", "HTP/1.1", ""]
HEADERS = [
    ("Host", "127.0.0.1"), ("Host", ""), ("Host", "a, b"), ("Host", "127.0.0.1:99999"), ("Content-Length", "5"),
    ("Content-Length", "-1"), ("Content-Length", "+5"), ("Content-Length", "5, 6"), ("Content-Length", "9" * 30),
    ("Content-Length", "0x5"), ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked, chunked"),
    ("Transfer-Encoding", "xchunked"), ("Transfer-Encoding", "gzip, chunked"), ("Transfer-Encoding ", "chunked"),
    ("Content-Encoding", "gzip"), ("Content-Encoding", "deflate"), ("Content-Encoding", "br"), ("Connection", "close"),
    ("Connection", "keep-alive, upgrade"), ("Upgrade", "websocket"), ("Upgrade", "h2c"), ("Expect", "100-continue"),
    ("Authorization", "Bearer " + "x" * 5_000), ("Authorization", "Basic !!!"), ("Cookie", "sessionid=" + "a;" * 500),
    ("X-Weir-Pool", "../../x"), ("X-Request-Id", "a\tb"), ("X-Request-Id", "a" * 4_000), ("X-Session-Id", "\x00"),
    ("X-Weir-Deadline-Ms", "9" * 420), ("Content-Type", "application/json"), ("Content-Type", "multipart/form-data"),
    ("Range", "bytes=0-,-1"), ("If-None-Match", "*" * 3_000), ("Forwarded", "for=\"_x\""), ("X-Forwarded-For", ",,,"),
    ("", "empty"), (" folded", "x"), ("Bad Name", "x"), ("X-Nul", "a\x00b"), ("X-Lone", "a\rb"), ("X-High", "\xfe\xff"),
    ("Sec-WebSocket-Key", "x"), ("Origin", "http://evil.example"), ("Accept", "*/*;q=" + "0" * 2_000),
]  # fmt: skip
CHUNKS = [
    b"5\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffffff\r\nx", b"-1\r\nx\r\n0\r\n\r\n",
    b"5\r\nhelloXX0\r\n\r\n", b"0\r\nauthorization: Bearer x\r\n\r\n", b"0\r\n" + b"a: b\r\n" * 5_000 + b"\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"1\r\n{\r\n" * 2_000 + b"0\r\n\r\n",
]  # fmt: skip


def json_bodies(draw):
    """Return a hostile JSON text as bytes; `draw` is a random.Random."""
    depth = draw.choice([10, 253, 254, 1_000, 60_000])
    wide = draw.choice([10, 5_000, 200_000])
    return draw.choice(
        [
            b"", b"{", b"nul", b"[]", b'""', b"1e999", b"-", b"NaN", b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", 
            b"{}" * 9,            b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth,
            b"[" + b"[]," * wide + b"[]]", b"9" * wide, b'{"model":' + b"1" * wide + b"}", b'"' + b"a" * wide + b'"',
            b'{"messages":"' + b"\\u0000" * 50 + b'"}', b'{"a":"\\ud800"}', b'{"a":1,"a":2}',
            json.dumps({"model": "llama-3.1-8b", "messages": messages(draw)}).encode(),
            json.dumps({"model": messages(draw), "prompt": messages(draw)}).encode(),
            json.dumps({"model": "llama-3.1-8b", "prompt": "x", "max_tokens": value(draw), "n": value(draw)}).encode(),
        ]
    )  # fmt: skip


def value(draw):
    return draw.choice(
        [None, True, -1, 0, 2**31, 2**63, 2**80, -(10**30), 1e308, 0.1, "", "x", "\x00", "\u202e", "9" * 400, [], {}]
    )


def messages(draw):
    return draw.choice(
        [
            None, 5, "x", [], [[]], [None], [{}], [{"role": value(draw), "content": value(draw)}],
            [{"role": "user", "content": [{"type": "text", "text": value(draw)}]}] * draw.choice([1, 300]),
            [{"role": "user", "content": "x", "metadata": {"max_tokens": value(draw)}}],
        ]
    )  # fmt: skip


def squeezed(draw, body):
    return draw.choice(
        [gzip.compress(body), zlib.compress(body), gzip.compress(body)[:-5], gzip.compress(gzip.compress(body))]
    )


def request(draw):
    """Return a hostile request, complete or cut off."""
    body = draw.choice(
        [b"", b"hello", json_bodies(draw), draw.choice(CHUNKS), squeezed(draw, json_bodies(draw)[:50_000])]
    )
    chosen = draw.sample(HEADERS, draw.randrange(6))
    if draw.random() < 0.5:
        chosen.append(("Content-Length", str(len(body) + draw.choice([0, 0, 0, -1, 1, 100]))))
    if draw.random() < 0.7:
        chosen.append(("Host", "127.0.0.1"))
    line = " ".join([draw.choice(METHODS), draw.choice(PATHS), draw.choice(VERSIONS[:2] * 4 + VERSIONS)])
    end = draw.choice(["\r\n"] * 9 + ["\n"])
    head = end.join([line, *(f"{name}: {text}" for name, text in chosen), "", ""])
    raw = head.encode("latin-1", "replace") + body
    return raw[: draw.randrange(1, len(raw))] if draw.random() < 0.1 else raw
