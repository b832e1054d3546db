"""A request that is counted at a decoder before the decoder's engine has received it."""

from router.pool.endpoint import Endpoint


class Unheld:
    """The period until `over`, in which no token is due because the prompt is computed elsewhere."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint: Endpoint | None = endpoint
        endpoint.unheld += 1
        endpoint.awaiting += 1

    def over(self) -> None:
        """End this period; further calls change nothing."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.unheld -= 1
            endpoint.awaiting -= 1
