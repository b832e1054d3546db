"""The heartbeat of a run: tells that its worker lives, and hears that somebody wants it to stop."""

import time

from django.utils import timezone

from controlplane.experiments.models import RUNNING, Run

BEAT_S = 2.0
LOST_S = 15.0  # a run that has not been heard of for so long has lost its worker
LOOK_S = 0.5


class RunStopped(Exception):
    """The run is no longer wanted: its experiment was cancelled, or the reaper took it for lost."""


class RunHeartbeat:
    """Called often by whatever the run is waiting for; writes every BEAT_S, looks every LOOK_S."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._written = self._looked = 0.0

    def beat(self, step: str = "", done: int | None = None) -> None:
        """Raises Stopped."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._look()
        changed = bool(step) and step != self.run.step
        if changed or now - self._written >= BEAT_S:
            self._written = now
            self._write(step, done)

    def wait(self, seconds: float, step: str = "") -> None:
        """Sleep with a beating heart; at most LOOK_S at a time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.beat(step)
            time.sleep(min(left, LOOK_S))

    def _look(self) -> None:
        alive = Run.objects.filter(pk=self.run.pk, status=RUNNING, experiment__status=RUNNING)
        if not alive.exists():
            raise RunStopped

    def _write(self, step: str, done: int | None) -> None:
        values = {"heartbeat_at": timezone.now()}
        if step:
            self.run.step = values["step"] = step  # type: ignore[assignment]
        if done is not None:
            values["done"] = done  # type: ignore[assignment]
        Run.objects.filter(pk=self.run.pk, status=RUNNING).update(**values)
