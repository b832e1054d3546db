"""A request that counts at a decoder whose engine does not hold it yet."""

from router.pool.endpoint import Endpoint


class Unheld:
    """Until `over`, no token is due: the prompt is computed elsewhere."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint: Endpoint | None = endpoint
        endpoint.unheld += 1

    def over(self) -> None:
        """Once; further calls change nothing."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.unheld -= 1
