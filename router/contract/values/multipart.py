"""Fields of a multipart/form-data body, used to route a request with a file. Pure. The engine reads the unchanged body
with its own parser. Whatever two parsers may read differently is therefore refused; otherwise a request could name one
model to the router and another to the engine.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_PARTS = 64
LARGEST_HEAD = 8 * 1024  # bytes of the headers of a part
LONGEST_VALUE = 1024  # bytes of a readable value

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rb'[ \t]*;[ \t]*(%b)=(?:"([^"\\\r\n]*)"|(%b))' % (_TOKEN, _TOKEN))
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_HEADER = re.compile(rb"(%b):[ \t]*([^\r\n]*)" % _TOKEN)
_KIND, _PART = b"multipart/form-data", b"form-data"
_PLAIN = (b"7bit", b"8bit", b"binary")


class InvalidMultipart(ValueError):
    """An invalid body; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Part:
    name: bytes
    is_file: bool
    start: int  # start of its value in the body
    end: int


def is_multipart(content_type: bytes) -> bool:
    return content_type.lstrip(b" \t")[:10].lower() == b"multipart/"


def is_urlencoded(content_type: bytes) -> bool:
    """Return whether engines read the body as a form even if it is also valid JSON."""
    return b"x-www-form-urlencoded" in content_type.lower()


def boundary_of(content_types: Sequence[bytes]) -> bytes:
    """Return the boundary from the content-type header, of which there must be exactly one."""
    if len(content_types) != 1:
        raise InvalidMultipart("send one content-type")
    kind, found = content_types[0].strip(b" \t"), {}
    if kind[: len(_KIND)].lower() == _KIND:
        found = _parameters(kind[len(_KIND) :])
    boundary = found.get(b"boundary", b"")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise InvalidMultipart("content-type must be multipart/form-data with a boundary of 1 to 70 characters")
    return boundary


def parts(body: bytes, boundary: bytes) -> list[Part]:
    """Split the body into parts. Raise InvalidMultipart."""
    found = list(_parts(body, b"--" + boundary))
    if body.count(b"--" + boundary) != len(found) + 1:
        raise InvalidMultipart("the boundary occurs within a part")
    return found


def text_of(body: bytes, found: Sequence[Part], name: bytes) -> tuple[str, int, int] | None:
    """Return a field's value and its position in the body, or None. Raise InvalidMultipart for a file, for a repeated
    field, and for a value that is too long or not text."""
    named = [part for part in found if part.name == name]
    shown = name.decode()
    if not named:
        return None
    if len(named) > 1:
        raise InvalidMultipart(f"{shown}: send it once")
    part = named[0]
    if part.is_file or part.end - part.start > LONGEST_VALUE:
        raise InvalidMultipart(f"{shown}: must be text of at most {LONGEST_VALUE} bytes")
    try:
        return body[part.start : part.end].decode(), part.start, part.end
    except UnicodeDecodeError:
        raise InvalidMultipart(f"{shown}: must be text in UTF-8") from None


def _parts(body: bytes, delimiter: bytes) -> Iterator[Part]:
    if not body.startswith(delimiter):
        raise InvalidMultipart("the body must begin with its boundary")
    at = len(delimiter)
    for _ in range(MOST_PARTS + 1):
        after = body[at : at + 2]
        if after == b"--":
            if body[at + 2 :] not in (b"", b"\r\n"):
                raise InvalidMultipart("the body continues after its last boundary")
            return
        if after != b"\r\n":
            raise InvalidMultipart("a line with the boundary must hold nothing else")
        start = body.find(b"\r\n\r\n", at, at + 2 + LARGEST_HEAD) + 4
        if start < 4:
            raise InvalidMultipart(f"the headers of a part may have at most {LARGEST_HEAD:,} bytes")
        end = body.find(b"\r\n" + delimiter, start)
        if end < 0:
            raise InvalidMultipart("the body ends before its last boundary")
        name, is_file = _head(body[at + 2 : start - 4])
        yield Part(name, is_file, start, end)
        at = end + 2 + len(delimiter)
    raise InvalidMultipart(f"the body may have at most {MOST_PARTS} parts")


def _head(head: bytes) -> tuple[bytes, bool]:
    """Return (name, whether it is a file) from the headers of a part."""
    headers = [_HEADER.fullmatch(line) for line in head.split(b"\r\n")]
    values: dict[bytes, bytes] = {}
    for header in headers:
        if header is None or header[1].lower() in values:
            raise InvalidMultipart("the headers of a part must be lines NAME: VALUE, each name once")
        values[header[1].lower()] = header[2].strip(b" \t")
    if values.get(b"content-transfer-encoding", b"binary").lower() not in _PLAIN:
        raise InvalidMultipart("content-transfer-encoding: send the bytes as they are")
    disposition = values.get(b"content-disposition", b"")
    named = _parameters(disposition[len(_PART) :]) if disposition[: len(_PART)].lower() == _PART else {}
    name = named.get(b"name", b"")
    if not name or not name.isascii() or b"%" in name or b"name*" in named:
        raise InvalidMultipart('each part needs content-disposition: form-data; name="…" with a name in ASCII')
    return name, b"filename" in named or b"filename*" in named


def _parameters(text: bytes) -> dict[bytes, bytes]:
    """Parse `; NAME=VALUE` pairs; return nothing if a name is repeated or anything else occurs."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in found:
            return {}
        found[match[1].lower()] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return found
