"""The order of an engine's batches: each has the next number, what is missing is asked for, what is lost is said. Pure.

`live` and `replayed` take what came and call `apply` with each batch in its turn. After a gap that cannot be filled
`lose` is called: nothing that was known before can be relied upon.
"""

from collections.abc import Callable

KEPT = 20_000  # batches that came too early, while the missing ones are on their way


class Sequence:
    def __init__(self, apply: Callable[[bytes], None], lose: Callable[[], None], ask: Callable[[int], bool]) -> None:
        """`ask(n)`: have the batches from number n on replayed; False when that cannot be."""
        self._apply = apply
        self._lose = lose
        self._ask = ask
        self._early: dict[int, bytes] = {}
        self._asking = False
        self._again = False  # the gap was found after the question under way was asked
        self.next = 0
        self.gaps = 0
        self.replayed = 0  # batches that came on request
        self.losses = 0

    @property
    def asking(self) -> bool:
        return self._asking

    @property
    def whole(self) -> bool:
        """Nothing is missing of what has been heard of."""
        return not self._early

    def start(self) -> None:
        """Ask for everything that the engine still has."""
        self._asking = self._ask(self.next)

    def confirm(self) -> None:
        """Ask whether something came after the last one; the answer ends with `replay_ended`."""
        if not self._asking:
            self._asking = self._ask(self.next)

    def live(self, number: int, payload: bytes) -> bool:
        """False for a number that was seen before."""
        if number < self.next:
            return False
        if number > self.next:
            self._missing(number, payload)
            return True
        self._take(payload)
        self._take_early()
        return True

    def replayed_one(self, number: int, payload: bytes) -> None:
        if number < self.next:
            return
        if number > self.next:  # the engine has no more of what is before
            self._jump(number)
        self.replayed += 1
        self._take(payload)
        self._take_early()

    def replay_ended(self) -> None:
        """Everything that the engine had when it was asked was sent; or, it does not answer."""
        self._asking = False
        if self._early and self._again:
            self._again = False
            self._asking = self._ask(self.next)
        while self._early and not self._asking:
            self._jump(min(self._early))
            self._take_early()

    def _missing(self, number: int, payload: bytes) -> None:
        if not self._early:
            self.gaps += 1
            self._again = self._asking
        self._early[number] = payload
        if not self._asking:
            self._asking = self._ask(self.next)
        if not self._asking or len(self._early) > KEPT:
            self._again = False
            self.replay_ended()

    def _jump(self, number: int) -> None:
        self.losses += 1
        self.next = number
        self._lose()

    def _take(self, payload: bytes) -> None:
        self._early.pop(self.next, None)  # it came both ways
        self.next += 1
        self._apply(payload)

    def _take_early(self) -> None:
        while (payload := self._early.pop(self.next, None)) is not None:
            self._take(payload)
