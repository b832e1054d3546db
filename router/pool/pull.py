"""A pull under way, as load of the two instances."""

from router.pool.endpoint import Endpoint


class Pull:
    """Until `over`, the instance counts as busy for as long as it would take to compute `tokens`; otherwise further
    requests would gather there. Pulls from the same peer share its link."""

    def __init__(self, peer: Endpoint, instance: Endpoint, tokens: int) -> None:
        self._ends: tuple[Endpoint, Endpoint] | None = peer, instance
        self._tokens = tokens
        self._count(peer, instance, 1)
        self.sharing = peer.pulls + peer.others_pulls  # pulls from there, with this one

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
