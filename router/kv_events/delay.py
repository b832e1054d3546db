"""The delay of an engine's events, without knowing the difference between its clock and this host's. Pure."""

from math import inf

FORGOTTEN_S = (
    60.0  # a clock that was set makes every delay longer or shorter: the shortest counts for so long, or twice
)


class ShortestDelay:
    """The shortest recent delay: the least of this window and the one before."""

    def __init__(self) -> None:
        self._window = 0
        self._latest = self._earlier = inf

    def beyond(self, delay_s: float, now: float) -> float:
        """Return the seconds by which this delay exceeds the shortest. `now`: s, monotonic."""
        window = int(now // FORGOTTEN_S)
        if window != self._window:
            self._earlier = self._latest if window == self._window + 1 else inf
            self._latest, self._window = inf, window
        self._latest = min(self._latest, delay_s)
        return delay_s - min(self._latest, self._earlier)
