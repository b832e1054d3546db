"""Header lines with the engine's own key and no other credentials."""

from router.contract.net import engine_key
from router.contract.net.engine_key import EngineKeyMissing
from router.upstream.errors import KeyMissing


def with_key(lines: bytes, reference: str) -> bytes:
    """Replace the client's credentials by the engine's key; return the lines unchanged for an engine without one.
    Raise KeyMissing."""
    if not reference:
        return lines
    try:
        return engine_key.replaced(lines, reference)
    except EngineKeyMissing as error:
        raise KeyMissing(str(error)) from None
