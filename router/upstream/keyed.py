"""Header lines with the key of the engine that they go to, and of no other."""

from router.contract.net import engine_key
from router.contract.net.engine_key import EngineKeyMissing
from router.upstream.errors import KeyMissing


def with_key(lines: bytes, reference: str) -> bytes:
    """In place of the client's own credentials; unchanged for an engine that asks for no key. Raises KeyMissing."""
    if not reference:
        return lines
    try:
        return engine_key.replaced(lines, reference)
    except EngineKeyMissing as error:
        raise KeyMissing(str(error)) from None
