"""Tokens of a prompt held by each instance, stored by level: of a thousand instances, most hold the same system
prompt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from typing import TypeVar

_FLAGS = bytes.maketrans(b"01", b"\x00\x01")
D = TypeVar("D")

Level = tuple[int, int]  # (tokens, mask of the instances that hold this number)


class HeldByLevel(Mapping[str, int]):
    """Held tokens by instance, without instances that hold none; each value is computed on access."""

    __slots__ = ("_names", "bits", "levels")

    def __init__(self, levels: Iterable[Level], names: Sequence[str], bits: Mapping[str, int]) -> None:
        """`levels` is in ascending order, with each instance in one of them. `names` (by bit number) and `bits` (by
        name) may grow later, but their entries must not change."""
        self.levels: list[Level] = []  # ascending by tokens; no two are equal
        for tokens, mask in levels:
            same = self.levels and self.levels[-1][0] == tokens
            self.levels.append((tokens, mask | self.levels.pop()[1] if same else mask))
        self._names = names
        self.bits = bits

    def __getitem__(self, name: str) -> int:
        tokens = self._at(self.bits[name])
        if tokens is None:
            raise KeyError(name)
        return tokens

    def get(self, name: str, default: D = None) -> int | D:  # type: ignore[assignment]
        tokens = self._at(self.bits.get(name, 0))
        return default if tokens is None else tokens

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(named(mask, self._names) for _, mask in self.levels)

    def __len__(self) -> int:
        return sum(mask.bit_count() for _, mask in self.levels)

    def of(self, names: Sequence[str]) -> list[int]:
        """Return the tokens that each of these instances holds."""
        bits, levels = map(self.bits.get, names, repeat(0)), self.levels
        if len(levels) == 1:
            (tokens, mask), *_ = levels
            return [tokens if mask & bit else 0 for bit in bits]
        held = []
        for bit in bits:  # `_at` written out, for speed
            for tokens, mask in levels:
                if mask & bit:
                    held.append(tokens)
                    break
            else:
                held.append(0)
        return held

    def of_mask(self, mask: int) -> Iterator[str]:
        """Return the instances of a level."""
        return named(mask, self._names)

    def _at(self, bit: int) -> int | None:
        for tokens, mask in self.levels:
            if mask & bit:
                return tokens
        return None


def most(held: Mapping[str, int] | None) -> int:
    """Return the largest number of tokens that an instance holds."""
    if isinstance(held, HeldByLevel):
        return held.levels[-1][0] if held.levels else 0
    return max(held.values(), default=0) if held else 0


def named(mask: int, names: Sequence[str]) -> Iterator[str]:
    """Return the instances of a mask; the loop runs in C, because a thousand may share a system prompt."""
    return compress(names, f"{mask:b}"[::-1].encode().translate(_FLAGS))
