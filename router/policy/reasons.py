"""Reasons of a decision, put into words when somebody reads them: few requests' are read."""

from collections.abc import Callable, Iterator
from typing import Any, overload

from router.policy.value import Value


class Reasons(Value, frozen=True):
    """As a tuple of texts, equal to any that has the same."""

    make: Callable[..., tuple[str, ...]]
    given: tuple[Any, ...]  # values that do not change any more

    def _made(self) -> tuple[str, ...]:
        return self.make(*self.given)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[str, ...]: ...
    def __getitem__(self, position: int | slice) -> str | tuple[str, ...]:
        return self._made()[position]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Reasons) and self._made() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._made())

    def __repr__(self) -> str:
        return repr(self._made())


InWords = tuple[str, ...] | Reasons
