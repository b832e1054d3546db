"""The distinction of content from an API server's signs of life: comments, pings, empty lines."""

import re

_PING = rb"(?:ping|keep[-_]?alive|heartbeat)"
LONGEST = 256  # longest read without content
_EMPTY = re.compile(
    rb"(?:[0-9a-fA-F]+\r\n)?"  # size of a chunk
    rb"(?:[ \t]*\r?\n|:[^\n]*\n|event: ?%b\r?\n|data: ?\{[^{}\n]*\"type\": ?\"%b\"[^{}\n]*\}\r?\n)*[ \t]*"
    % (_PING, _PING)
)


def has_content(data: bytes) -> bool:
    """Return whether the bytes of one read hold more than signs of life."""
    return len(data) > LONGEST or _EMPTY.fullmatch(data) is None
