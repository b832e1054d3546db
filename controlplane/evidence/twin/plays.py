"""The loop that plays arms × seeds for previews, tunings and plans: in order, on several processes at once. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from fleet.beside import beside

P = TypeVar("P")  # description of a play
V = TypeVar("V")


def lanes(
    plays: Sequence[P], values: Callable[[P], Iterable[V]], at_once: int, waiting: Callable[[], None] = lambda: None
) -> list[Iterator[V]]:
    """Return the values of every `at_once`-th play, starting from the first, from the second and so on. The first lane
    is played in this process on demand; the others are played in other processes if possible, see `beside`.
    """

    def lane(at: int) -> Iterator[V]:
        return chain.from_iterable(map(values, plays[at::at_once]))

    others = [beside(partial(lane, at), waiting) for at in range(1, at_once)]
    return [lane(0), *others]


def played(plays: Sequence[P], value: Callable[[P], V], at_once: int) -> Iterator[V]:
    """Yield the value of each play, in order."""
    found = lanes(plays, lambda play: (value(play),), min(at_once, len(plays)) or 1)
    for number in range(len(plays)):
        yield next(found[number % len(found)])
