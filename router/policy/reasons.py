"""Reasons of a decision, put into words only when they are read, which is rare."""

from collections.abc import Callable, Iterator
from typing import Any, overload

from router.policy.value import Value


class Reasons(Value, frozen=True):
    """A lazy tuple of texts, equal to any tuple with the same texts."""

    make: Callable[..., tuple[str, ...]]
    given: tuple[Any, ...]  # immutable values

    def in_words(self) -> tuple[str, ...]:
        """Return the texts. tuple() on this object would first ask for its length and build the texts twice."""
        return self.make(*self.given)

    def __iter__(self) -> Iterator[str]:
        return iter(self.in_words())

    def __len__(self) -> int:
        return len(self.in_words())

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[str, ...]: ...
    def __getitem__(self, position: int | slice) -> str | tuple[str, ...]:
        return self.in_words()[position]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Reasons) and self.in_words() == tuple(other)

    def __hash__(self) -> int:
        return hash(self.in_words())

    def __repr__(self) -> str:
        return repr(self.in_words())


InWords = tuple[str, ...] | Reasons


def in_words(reasons: InWords) -> tuple[str, ...]:
    return reasons if isinstance(reasons, tuple) else reasons.in_words()
