"""A client's request, as the router read it and as it goes to the engines."""

from collections.abc import Sequence

from router.policy.value import Value
from router.tokenize.prompt import Prompt


class ProxiedRequest(Value, frozen=True):
    target: bytes  # path and query
    forwarded: bytes  # header lines that go on to the engine
    body: bytes
    prompt: Prompt
    chunks: Sequence[int]  # chain hashes of the prompt
    session: str | None = None  # as the client names it
    turn: int = 0  # requests of the pool that came before
    strip_usage: bool = False  # the router asked for the usage of a stream, the client did not


# Before the body has been read, and after the request has ended
NOT_READ = ProxiedRequest(
    b"", b"", b"", Prompt(model="", rendered=b"", token_ids=None, stream=False, usage_asked=False), ()
)
