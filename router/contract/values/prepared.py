"""Types that several threads read. Pure."""

from functools import cache
from threading import Lock
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")

_ONE_AT_A_TIME = Lock()


def prepared(kind: Kind) -> Kind:
    """Return the type once msgspec knows all of its fields, which it examines when a value is first read. A second
    thread that reads a value meanwhile would find fields without types and crash the process (msgspec 0.22)."""
    _prepare(kind)
    return kind


@cache
def _prepare(kind: object) -> None:
    with _ONE_AT_A_TIME:
        msgspec.json.Decoder(kind)
