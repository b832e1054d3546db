"""A client's request as the router reads it and as it is sent to engines."""

from collections.abc import Sequence

from router.policy.value import Value
from router.tokenize import Prompt


class ProxiedRequest(Value, frozen=True):
    target: bytes  # path and query
    forwarded: bytes  # header lines for the engine
    body: bytes
    prompt: Prompt
    chunks: Sequence[int]  # chain hashes of the prompt
    session: str | None = None  # client's name of the session
    turn: int = 0  # number of earlier requests to the pool
    strip_usage: bool = False  # True if the router, not the client, asked for the stream's usage


# Placeholder before the body is read, and after the request's end
NOT_READ = ProxiedRequest(
    b"", b"", b"", Prompt(model="", rendered=b"", token_ids=None, stream=False, usage_asked=False), ()
)
