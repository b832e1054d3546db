"""Distinguishes content from an API server's keep-alives: comments, pings, empty lines, events without content."""

from router.contract.answer import answers

LONGEST = 16 * 1024  # bytes of an unfinished line; a longer line counts as content


def content(data: bytes, *, is_stream: bool) -> tuple[bool, bytes]:
    """Return whether a part of an answer has more than keep-alives. For a stream, also return the unfinished last line,
    to be put before the next part."""
    if not is_stream:
        return bool(data.strip()), b""
    *lines, rest = data.split(b"\n")
    for line in lines:
        said = line[5:].strip() if line.startswith(b"data:") else b""
        if said and answers.sign(said)[0] != "quiet":
            return True, b""
    return (True, b"") if len(rest) > LONGEST else (False, rest)
