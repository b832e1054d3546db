"""A KV pull in progress, counted as load of both instances."""

from router.pool.endpoint import Endpoint


class Pull:
    """A load equal to computing `tokens`, until `over`, so that further requests do not gather on the instance. Pulls
    from the same peer share its link.
    """

    def __init__(self, peer: Endpoint, instance: Endpoint, tokens: int) -> None:
        self._ends: tuple[Endpoint, Endpoint] | None = peer, instance
        self._tokens = tokens
        self._count(peer, instance, 1)
        self.sharing = peer.pulls + peer.others_pulls  # pulls from the peer, including this one

    def over(self) -> None:
        """End the pull; further calls change nothing."""
        ends, self._ends = self._ends, None
        if ends is not None:
            self._count(*ends, -1)

    def _count(self, peer: Endpoint, instance: Endpoint, by: int) -> None:
        peer.pulls += by
        instance.pull_tokens += by * self._tokens
        instance.prefill_tokens += by * self._tokens
        peer.touch()
        instance.touch()
