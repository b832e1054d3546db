"""A pull under way, as load of the two instances."""

from router.pool.endpoint import Endpoint


class Pull:
    """From its beginning until `over`: the instance waits for as long as `tokens` would take it to compute, and is to
    look so, else further requests gather on it; and the peer's link is shared."""

    def __init__(self, peer: Endpoint, instance: Endpoint, tokens: int) -> None:
        self._ends: tuple[Endpoint, Endpoint] | None = peer, instance
        self._tokens = tokens
        self._count(peer, instance, 1)
        self.sharing = peer.pulls  # pulls from there, with this one

    def over(self) -> None:
        """Once; further calls change nothing."""
        ends, self._ends = self._ends, None
        if ends is not None:
            self._count(*ends, -1)

    def _count(self, peer: Endpoint, instance: Endpoint, by: int) -> None:
        peer.pulls += by
        instance.pull_tokens += by * self._tokens
        instance.prefill_tokens += by * self._tokens
        peer.touch()
        instance.touch()
