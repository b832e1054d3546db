"""Tells content from what an API server sends while its engine computes: comments, pings, empty lines."""

import re

LONGEST = 256  # bytes of a read that may hold nothing else
_EMPTY = re.compile(
    rb"(?:[0-9a-fA-F]+\r\n)?"  # size of a chunk
    rb"(?:[ \t]*\r?\n|:[^\n]*\n|event: ?ping\r?\n|data: ?\{\s*\"type\": ?\"ping\"\s*\}\r?\n)*"
)


def has_content(data: bytes) -> bool:
    """Whether the bytes, as they came in one read, hold more than signs of life."""
    return len(data) > LONGEST or _EMPTY.fullmatch(data) is None
