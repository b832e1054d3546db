"""Estimates the tokens of a prompt from its bytes, by the usage that engines report."""

from typing import Final

INITIAL = 0.25  # tokens per byte
LEARNING: Final = 0.1  # weight of one answer
SHORTEST: Final = 64  # bytes; in shorter prompts the chat template outweighs the text
LEAST: Final = 0.01
MOST: Final = 2.0


class TokenRatio:
    """Tokens per byte of a pool's model, an exponentially weighted mean over the answers' `usage`."""

    __slots__ = ("learned", "per_byte")

    def __init__(self) -> None:
        self.per_byte = INITIAL
        self.learned = False

    def estimate(self, size: int) -> int:
        return round(size * self.per_byte) or 1 if size else 0

    def learn(self, size: int, tokens: int) -> None:
        if size < SHORTEST or tokens <= 0:
            return
        seen = tokens / size
        seen = LEAST if seen < LEAST else MOST if seen > MOST else seen
        weight = LEARNING if self.learned else 1.0
        self.per_byte += weight * (seen - self.per_byte)
        self.learned = True
