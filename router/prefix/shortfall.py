"""Learns by how much an engine's hits are shorter than its blocks allow: one that speculates (EAGLE, MTP) computes the
last block anew in most versions, and no event says so. Pure."""

SURE = 4  # answers in a row that are short alike
MOST_BLOCKS = 2


class Shortfall:
    __slots__ = ("_seen", "_times", "tokens")

    def __init__(self) -> None:
        self.tokens = 0  # how much shorter its hits are expected to be
        self._seen = 0
        self._times = 0

    def add(self, allowed: int, actual: int, block_size: int) -> None:
        """Tokens that an engine's blocks allowed to reuse, and those that it reused."""
        missing = allowed - actual
        if not allowed or not 0 <= missing <= MOST_BLOCKS * block_size:
            return
        self._times = self._times + 1 if missing == self._seen else 1
        self._seen = missing
        if self._times >= SURE:
            self.tokens = missing
