"""Estimates a prompt's tokens from its bytes, and a stream's tokens from its events, by the usage that engines
report."""

from typing import Final

from router.contract.engine_fields import MOST_PER_EVENT

INITIAL = 0.25  # tokens per byte
LEARNING: Final = 0.1  # weight of one answer
SHORTEST: Final = 64  # bytes; in shorter prompts the chat template outweighs the text
LEAST: Final = 0.01
MOST: Final = 2.0
FEWEST_EVENTS: Final = 16
RISING: Final = 0.02
FALLING: Final = 0.5
CLIENTS: Final = 64  # clients from which it learns; the least recently seen are dropped


class TokenRatio:
    """Tokens per byte of a pool's model: an exponentially weighted mean over the answers' `usage`."""

    __slots__ = ("_by_client", "learned", "per_byte", "per_event")

    def __init__(self) -> None:
        self.per_byte = INITIAL
        self.per_event = 1.0  # lower median over the clients
        self.learned = False
        self._by_client: dict[str, float] = {}

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

    def in_event(self, client: str) -> float:
        """Estimate the tokens in each event of the client's stream. Figures learned from a single client apply only to
        that client."""
        return self.per_event if len(self._by_client) > 1 or client in self._by_client else 1.0

    def learn_events(self, client: str, events: int, tokens: int) -> None:
        """Learn the tokens in each event. The pool's figure rises above one only if all streams have more, as with an
        engine that speculates or sends several at once. An engine that holds back some tokens, such as those of a tool
        call, changes the figure little, and a client with many such streams counts once.
        """
        if events < FEWEST_EVENTS:
            return
        clients, before = self._by_client, self.in_event(client)
        own = clients.pop(client, before)
        more = min(max(tokens / events, 1.0), MOST_PER_EVENT) - own
        clients[client] = own + more * (RISING if more > 0 else FALLING)
        if len(clients) > CLIENTS:
            del clients[next(iter(clients))]
        self.per_event = sorted(clients.values())[(len(clients) - 1) // 2]
