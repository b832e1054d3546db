"""Messages on /healthz about engines that hold requests and produce no token."""

from collections.abc import Iterable, Sequence

from router.pool.endpoint import Endpoint

SHOWN = 20  # engines named


def stall_troubles(endpoints: Iterable[Endpoint]) -> list[str]:
    stalled = [endpoint for endpoint in endpoints if endpoint.progress.stalled]
    named = [f"{endpoint.id} is {endpoint.progress.stalled}" for endpoint in stalled[:SHOWN]]
    return [*named, f"{len(stalled) - SHOWN} more are stalled"] if len(stalled) > SHOWN else named


def stalled_why(endpoints: Sequence[Endpoint]) -> str:
    """Return why an instance is stalled; an instance is stalled only if all of its ranks are."""
    every = [endpoint.progress.stalled for endpoint in endpoints]
    return every[0] if every and all(every) else ""
