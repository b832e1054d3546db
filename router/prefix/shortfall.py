"""The number of tokens by which an engine's hits fall short of its blocks. With speculation (EAGLE, MTP), most versions
compute the last block again, which no event reports. Pure."""

SURE = 4  # consecutive answers with the same shortfall
MOST_BLOCKS = 2


class Shortfall:
    __slots__ = ("_seen", "_times", "tokens")

    def __init__(self) -> None:
        self.tokens = 0  # expected shortfall
        self._seen = 0
        self._times = 0

    def add(self, allowed: int, actual: int, block_size: int) -> None:
        """Add an answer: the tokens that the engine's blocks allowed it to reuse, and those that it reused."""
        missing = allowed - actual
        if not allowed or not 0 <= missing <= MOST_BLOCKS * block_size:
            return
        self._times = self._times + 1 if missing == self._seen else 1
        self._seen = missing
        if self._times >= SURE:
            self.tokens = missing
