"""Audio and images: answers of the right form, generated immediately, as the law of step times knows only text."""

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from fleet.simengine.http.body import Body, parse
from fleet.simengine.http.errors import ApiError
from fleet.simengine.http.formats.openai import model_of
from router.contract.values import multipart
from router.contract.values.multipart import InvalidMultipart

JSON, TEXT, WAV = b"application/json", b"text/plain; charset=utf-8", b"audio/wav"
SAMPLES_PER_S = 8_000  # sample rate of the speech: one byte per sample, one channel
LETTERS_PER_S = 15.0  # speed at which a text is spoken
BYTES_PER_S = 32_000  # transcribed audio: 16 kHz, 16 bits
MOST_IMAGES = 10
SIDE = 64  # pixels per side of an image


@dataclass(frozen=True, slots=True)
class Form:
    model: str | None
    fields: Body
    size: int  # bytes of its files


@dataclass(frozen=True, slots=True)
class Made:
    kind: bytes
    body: bytes


def read(raw: bytes, content_types: Sequence[bytes]) -> Form:
    """Parse a JSON object, or a form with files."""
    if not any(map(multipart.is_multipart, content_types)):
        body = parse(raw)
        return Form(model_of(body), body, 0)
    try:
        parts = multipart.parts(raw, multipart.boundary_of(content_types))
    except InvalidMultipart as error:
        raise ApiError(400, str(error)) from None
    fields = {
        part.name.decode(): raw[part.start : part.end].decode(errors="replace") for part in parts if not part.is_file
    }
    return Form(fields.get("model"), fields, sum(part.end - part.start for part in parts if part.is_file))


def _transcribed(form: Form) -> Made:
    if not form.size:
        raise ApiError(400, "file: Field required.", param="file")
    seconds = max(1, round(form.size / BYTES_PER_S))
    text = f"a simulated transcript of {form.size} bytes"
    if form.fields.get("response_format") == "text":
        return Made(TEXT, text.encode())
    return Made(JSON, orjson.dumps({"text": text, "usage": {"type": "duration", "seconds": seconds}}))


def _spoken(form: Form) -> Made:
    said = form.fields.get("input")
    if not isinstance(said, str) or not said:
        raise ApiError(400, "input: Field required, a text.", param="input")
    samples = bytes(128 + 64 * (i % 16 < 8) - 32 for i in range(int(len(said) / LETTERS_PER_S * SAMPLES_PER_S)))
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, SAMPLES_PER_S,
                       SAMPLES_PER_S, 1, 8, b"data", len(samples))  # fmt: skip
    return Made(WAV, head + samples)


def _drawn(form: Form) -> Made:
    given = form.fields.get("n", 1)
    count = int(given) if str(given).isdecimal() and len(str(given)) < 3 else 0
    if not 1 <= count <= MOST_IMAGES:
        raise ApiError(400, f"n: Input should be from 1 to {MOST_IMAGES}.", param="n")
    image = {"b64_json": base64.b64encode(_png()).decode()}
    usage = {"input_tokens": len(str(form.fields.get("prompt", ""))) // 4, "output_tokens": 0}
    return Made(JSON, orjson.dumps({"created": 0, "data": [image] * count, "usage": usage}))


def _png() -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + bytes((x * 4 + y * 4) % 256 for x in range(SIDE)) for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


ANSWERS: dict[str, Callable[[Form], Made]] = {
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), _transcribed),
    "/v1/audio/speech": _spoken,
    **dict.fromkeys(("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"), _drawn),
}
