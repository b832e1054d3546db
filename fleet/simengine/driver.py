"""Runs an engine by the wall clock, with one timer set for the next event in virtual time.
The event loop's timers have a resolution of a millisecond and each wake-up costs time, so ticks keep a minimum
distance. Steps that ended in between are delivered together, with their tokens as one chunk, as vLLM merges outputs for
slow clients.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from fleet.engine.engine import Engine, Stats, StepResult
from fleet.engine.lockstep import RankSteps
from fleet.engine.request import EngineRequest

TICK_DISTANCE_S = 0.004
LAG_WINDOW_S = 5.0


class Driver:
    def __init__(
        self,
        engine: Engine,
        time_scale: float,
        deliver: Callable[[list[StepResult]], None],
        pull: Callable[[EngineRequest], None],
        fail: Callable[[EngineRequest], None],
        steps: RankSteps | None = None,
        origin_s: float | None = None,
    ) -> None:
        """Create a driver. If the engine steps together with others, `steps` is the engine in its group, and all of
        them share one monotonic `origin_s`."""
        self._engine = engine
        self._steps = steps or engine
        self._scale = time_scale
        self._deliver = deliver  # receives ended steps; the list may be empty
        self._pull = pull  # receives requests that wait for transferred KV
        self._fail = fail  # receives requests that ran out of GPU memory
        self._loop = asyncio.get_running_loop()
        self._origin = time.monotonic() if origin_s is None else origin_s  # the loop's clock counts only milliseconds
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # due time of the timer
        self._earliest = 0.0  # earliest next tick that delivers
        self._lags = (0.0, 0.0)  # maximum of this window and of the previous one
        self._window_end = 0.0

    def now_s(self) -> float:
        """Return the virtual seconds since the start."""
        return (time.monotonic() - self._origin) * self._scale

    def add(self, requests: Iterable[EngineRequest], arrived_s: float) -> None:
        """Add requests. Raise RequestTooLong."""
        for request in requests:
            self._engine.add_request(request, arrived_s)
        self._set_timer()

    def abort(self, request: EngineRequest) -> bool:
        """Abort a request; return False if it was already over."""
        gone = self._engine.abort(request.id) is not None
        self._deliver([])
        self._set_timer()
        return gone

    def prefilled(self, request: EngineRequest) -> None:
        """Start the transfer of a request: another engine has computed its prompt."""
        self._engine.prefilled(request, self.now_s())
        self._set_timer()

    def pulled(self, request: EngineRequest, tokens: int) -> None:
        """Let a request continue: KV of `tokens` prompt tokens has arrived."""
        self._engine.pulled(request, tokens, self.now_s())
        self._set_timer()

    def release(self, request_id: str) -> None:
        """Free the blocks of a held request."""
        if self._engine.release_held(request_id, self.now_s()):
            self._deliver([])
            self._set_timer()

    def reset_cache(self) -> bool:
        done = self._engine.reset_cache()
        self._deliver([])
        return done

    def stats(self) -> Stats:
        return self._engine.stats(self.now_s())

    def lag_s(self) -> float:
        """Return the maximum delay of a tick in the last seconds of wall-clock time."""
        self._turn_window()
        return max(self._lags)

    def _set_timer(self) -> None:
        event_s = self._steps.next_event_s()
        if event_s is None:
            return
        due = max(self._origin + event_s / self._scale, self._earliest)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(max(due - time.monotonic(), 0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = max(time.monotonic(), self._due)  # timers fire up to half a millisecond early
        self._turn_window()
        self._lags = (max(self._lags[0], now - self._due), self._lags[1])
        results = self._steps.advance((now - self._origin) * self._scale)
        if results:
            self._earliest = now + TICK_DISTANCE_S
            self._deliver(results)
        for request in self._engine.take_pulls():
            self._pull(request)
        for request in self._engine.take_failed():
            self._fail(request)
        self._set_timer()

    def _turn_window(self) -> None:
        now = time.monotonic()
        if now >= self._window_end:
            before = self._lags[0] if now < self._window_end + LAG_WINDOW_S else 0.0
            self._lags = (0.0, before)
            self._window_end = now + LAG_WINDOW_S
