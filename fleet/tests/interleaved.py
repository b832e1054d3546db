"""Run code between the moment a publisher reads the database and its write to Redis."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fleet.redis import ordered_write
from fleet.redis.ordered_write import Published


@contextmanager
def between_reading_and_writing(happens: Callable[[], object]) -> Iterator[None]:
    """Call `happens` once, during the next publication in this process; it may itself publish."""
    write, left = ordered_write.write, [happens]

    def late(order: int, found: Published) -> int:
        if left:
            left.pop()()
        return write(order, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered_write, "write", late)
        yield
    assert not left, "nothing was published"
