"""The order and the delay of an engine's numbered batches. Missing batches are requested, lost batches reported. Pure.
`live` and `replayed_one` receive batches and call `apply` with each in order. `lose` is called after a gap that cannot
be filled: the state from before the gap is then unreliable.
"""

from collections.abc import Callable
from math import inf

KEPT = 20_000  # batches held back while missing ones are requested
KEPT_BYTES = 8 * 1024 * 1024  # bytes held back; they are applied in one step
MOST_REPLAYS = 20  # consecutive replay requests for batches that full queues dropped from earlier replays
FORGOTTEN_S = 60.0  # how long a delay counts, at most twice this time, since a clock may be adjusted


class Sequence:
    def __init__(self, apply: Callable[[bytes], None], lose: Callable[[], None], ask: Callable[[int], bool]) -> None:
        """Set up the sequence. `ask(n)` requests a replay from number n; it returns False if the engine offers none."""
        self._apply = apply
        self._lose = lose
        self._ask = ask
        self._early: dict[int, bytes] = {}
        self._early_bytes = 0
        self._asking = False
        self._again = False  # True if a gap appeared after the pending replay request
        self._begun = False  # True once a batch of the pending replay has arrived
        self._skips = False  # True if a batch of the pending replay was lost
        self._replays = 0  # consecutive replays from which a batch was lost
        self.next = 0
        self.gaps = 0
        self.replayed = 0  # batches received by replay

    @property
    def asking(self) -> bool:
        return self._asking

    @property
    def whole(self) -> bool:
        """Return whether all batches before the latest known one have arrived."""
        return not self._early

    def start(self) -> None:
        """Request all batches that the engine still holds."""
        self._request()

    def confirm(self) -> None:
        """Ask for batches after the last one; the reply ends with `replay_ended`."""
        if not self._asking:
            self._request()

    def _request(self) -> None:
        self._begun = False
        self._asking = self._ask(self.next)

    def live(self, number: int, payload: bytes) -> bool:
        """Take a live batch; return False for a number already seen."""
        if number < self.next:
            return False
        if number > self.next:
            self._missing(number, payload)
            return True
        self._take(payload)
        self._take_early()
        return True

    def replayed_one(self, number: int, payload: bytes) -> None:
        if number > self.next and self._begun and self._replays < MOST_REPLAYS:
            self.gaps += not self._skips
            # The engine may still hold the earlier batches, so this one is requested again with them
            self._skips = True
            return
        self._begun = True
        while number > self.next:  # the engine no longer holds earlier batches
            self._jump(min(number, *self._early) if self._early else number)
            self._take_early()
        if number < self.next:
            return
        self.replayed += 1
        self._take(payload)
        self._take_early()

    def replay_ended(self) -> None:
        """End a replay: the engine has sent everything it held, or does not answer."""
        self._asking = False
        self._replays = self._replays + 1 if self._skips else 0
        if self._skips or (self._early and self._again):
            self._skips = self._again = False
            self._request()
        while self._early and not self._asking:
            self._jump(min(self._early))
            self._take_early()

    def _missing(self, number: int, payload: bytes) -> None:
        if number not in self._early:
            if number - 1 not in self._early:
                self.gaps += 1
                self._again = self._asking
            self._early[number] = payload
            self._early_bytes += len(payload)
        if not self._asking:
            self._request()
        if not self._asking or len(self._early) > KEPT or self._early_bytes > KEPT_BYTES:
            self._again = self._skips = False
            self.replay_ended()

    def _jump(self, number: int) -> None:
        self.next = number
        self._lose()

    def _take(self, payload: bytes) -> None:
        self._early_bytes -= len(self._early.pop(self.next, b""))  # received both live and by replay
        self.next += 1
        self._apply(payload)

    def _take_early(self) -> None:
        while (payload := self._early.get(self.next)) is not None:
            self._take(payload)


class ShortestDelay:
    """The shortest recent delay, over this window and the previous one. Comparing with it cancels the difference
    between the clocks."""

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
