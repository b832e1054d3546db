"""Celery's schedule on a machine whose clock is set.

Celery compares wall-clock times: after an hour back, it would do nothing for an hour.
"""

import time
from typing import Any

import celery.beat

SET_BY_S = 2.0  # a clock that NTP slews moves less between two ticks


class BeatScheduler(celery.beat.Scheduler):
    """Begins anew when the wall clock and the monotonic clock part."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._offset = _offset()
        super().__init__(*args, **options)

    def tick(self, *args: Any, **options: Any) -> float:
        offset = _offset()
        if abs(offset - self._offset) > SET_BY_S:
            for entry in self.schedule.values():
                entry.last_run_at = entry.default_now()
            self._heap = None  # is made anew by the tick
        self._offset = offset
        due_in_s: float = super().tick(*args, **options)
        return due_in_s


def _offset() -> float:
    return time.time() - time.monotonic()
