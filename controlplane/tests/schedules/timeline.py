"""The states of the database in order, and which of them each reader has reached."""

from collections.abc import Hashable, Iterable


class WentBack(AssertionError):
    """A reader serves an older state than before."""


class NeverTrue(AssertionError):
    """A reader serves a state that the database never had."""


class Behind(AssertionError):
    """In the end, a reader does not serve the state of the database."""


class Timeline:
    """The states of one thing: a pool's policy and split, its instances, the API keys."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.states: list[Hashable] = []
        self._places: dict[str, int] = {}  # by reader: the earliest state in which it can be

    def says(self, state: Hashable) -> bool:
        """Add the current state of the database; return whether it is new."""
        if self.states and self.states[-1] == state:
            return False
        self.states.append(state)
        return True

    @property
    def now(self) -> Hashable:
        return self.states[-1]

    def serves(self, reader: str, state: Hashable) -> None:
        place = self._places.setdefault(reader, 0)
        if self.states[place] == state:
            return
        if state in self.states[place:]:
            self._places[reader] = self.states.index(state, place)
            return
        kind = WentBack if state in self.states else NeverTrue
        told = "\n  ".join(f"{number}: {each}" for number, each in enumerate(self.states))
        raise kind(f"{reader} serves {self.name} as {state}; it was at {place} of\n  {told}")

    def all_there(self, readers: Iterable[str]) -> None:
        """Check that in the end nobody is behind."""
        for reader in readers:
            if (place := self._places.get(reader)) is None or self.states[place] != self.now:
                serves = "nothing" if place is None else self.states[place]
                raise Behind(f"at rest {reader} serves {self.name} as {serves}; the database says {self.now}")

    def begins_anew(self, reader: str) -> None:
        self._places.pop(reader, None)
