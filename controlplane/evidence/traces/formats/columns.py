"""The fields of a trace: fields that are not used are reported, so that none is dropped silently."""

from collections.abc import Mapping

MOST_NAMES = 20
LONGEST_NAME = 40


class Columns:
    """The fields of one file."""

    __slots__ = ("given", "read")

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.read: set[str] = set()

    def add(self, values: Mapping[str, object]) -> None:
        """Add the fields of one row; dropping a null loses nothing."""
        self.given.update(name for name, value in values.items() if value is not None)

    def ignored(self) -> tuple[str, ...]:
        names = sorted(_short(name) for name in self.given - self.read)
        more = len(names) - MOST_NAMES
        return (*names[:MOST_NAMES], f"{more:,} more") if more > 0 else tuple(names)


def _short(name: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in name) or '""'
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
