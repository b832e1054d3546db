"""KV that decoders lend: the blocks of a session's latest answer, for the prefill of its next turn. With
`bidirectional_kv_xfer`, vLLM keeps the blocks of an answer for some minutes and reports their location at the end of
the answer. The engine that takes the blocks copies them by position, without comparing tokens. Blocks are therefore
offered only as far as the chained hashes of the next prompt equal those that the engine reported for its tokens.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from router.policy.types import Rates

MOST_BYTES = 32 * 1024 * 1024  # bytes kept by a pool
LEAST = 64  # tokens; vLLM does not take fewer
LONGEST = 1024 * 1024  # bytes of an answer that may describe its blocks and tokens
KEPT_S = 480.0  # vLLM's default, used until an engine has refused younger blocks


@dataclass(frozen=True, slots=True)
class LentBlocks:
    decoder: str  # endpoint that holds the blocks
    epoch: int
    size: int  # tokens in a block
    hashes: Sequence[int]  # chained, one per full block
    where: bytes  # the engine's `kv_transfer_params`, as JSON
    at: float  # s, monotonic

    @property
    def bytes(self) -> int:
        return len(self.where) + 8 * len(self.hashes)

    def shared(self, hashes: Sequence[int]) -> int:
        """Return the number of tokens that a prompt with these hashes shares with the blocks."""
        # Hashes are chained: equal hashes mean equal prefixes.
        places = range(min(len(hashes), len(self.hashes)))
        return bisect_left(places, True, key=lambda at: hashes[at] != self.hashes[at]) * self.size


def priced(held: Mapping[str, int], tokens: int, takers: Iterable[str], rates: Rates) -> Mapping[str, int]:
    """Return held tokens by instance; lent tokens are counted at the instances that may take them."""
    more = {name: worth(tokens, held.get(name, 0), rates) for name in takers}
    more = {name: tokens for name, tokens in more.items() if tokens > held.get(name, 0)}
    return {**held, **more} if more else held


def worth(tokens: int, held: int, rates: Rates) -> int:
    """Return the worth of lent blocks in held tokens for an instance that already holds some of them: their number,
    less the tokens that the instance could compute during the transfer, if that is known.
    """
    if not rates.transfer_bytes_per_s or not rates.kv_bytes_per_token:
        return tokens
    moving_s = rates.transfer_s(max(tokens - held, 0))
    return tokens - round(moving_s * (rates.compute_tokens_per_s or rates.prefill_tokens_per_s))


def share(tokens: int, held: int, size: int, rates: Rates) -> tuple[int, int]:
    """Return (lent tokens to be transferred to an instance that already holds some of them, lent tokens that it takes).
    If computing is as fast as the transfer, nothing is transferred: the instance takes only the full blocks that it
    holds, and the others are released.
    """
    if worth(tokens, held, rates) > held:
        return tokens, tokens
    return 0, min(held, tokens) // size * size


class Lendings:
    """Lent blocks by session, the latest last; the oldest are dropped first."""

    def __init__(self) -> None:
        self.by_session: dict[str, LentBlocks] = {}
        self._bytes = 0

    def keep(self, session: str, lent: LentBlocks) -> None:
        self.take(session)
        self.by_session[session] = lent
        self._bytes += lent.bytes
        while self._bytes > MOST_BYTES:
            self.take(next(iter(self.by_session)))

    def take(self, session: str) -> LentBlocks | None:
        """Remove and return the session's blocks; an engine lends its blocks only once."""
        lent = self.by_session.pop(session, None)
        if lent is not None:
            self._bytes -= lent.bytes
        return lent
