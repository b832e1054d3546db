"""The repeated steps of a control worker, grouped in lanes: no step waits for a step in another lane."""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.db import DatabaseError, close_old_connections

from controlplane.base.schedule import reports
from controlplane.base.schedule.lease import BEAT_S, Leadership
from fleet.tries import Failures, text_of
from router.contract.redis.fleet_status import StepReport

RARE_S = 60.0  # period from which a step counts as rare
FIRST_RARE_S = 600.0  # delay of rare steps at start-up, when everything else starts, too
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    run: Callable[[], object]
    every_s: float
    lane: str
    what: str  # description of the work that is late if the step is, for operators
    by_leader: bool = True  # False if every control worker runs the step


class StepThread:
    """A named thread and its steps."""

    def __init__(
        self, steps: Mapping[str, Step], leadership: Leadership, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.steps = steps
        self._leadership = leadership
        self._clock = clock
        begun = clock()
        self._due = {
            name: begun + (FIRST_RARE_S if step.every_s > RARE_S else 0.0) for name, step in self.steps.items()
        }
        self._reported: dict[str, StepReport] = {}
        self._failures = Failures(log, clock)

    def step(self) -> float:
        """Run the steps that are due. Return the seconds until the next one is due."""
        for name, step in self.steps.items():
            if self._due[name] <= self._clock():
                began = self._clock()
                taken = self._take(name, step)
                self._due[name] = max(began + (step.every_s if taken else BEAT_S), self._clock())
        return max(0.0, min(self._due.values()) - self._clock())

    def _take(self, name: str, step: Step) -> bool:
        """Run one step. Return False while another worker leads."""
        if step.by_leader and not self._leadership.holds():
            self._reported.pop(name, None)
            return False
        began, began_at = self._clock(), time.time()
        self._report(name, step, self._reported.get(name) or self._described(step, began_at))
        error = self._run(name, step)
        if error is None:
            self._report(name, step, self._described(step, time.time(), self._clock() - began))
        else:
            self._report(name, step, self._described(step, self._reported[name].at, self._clock() - began, error))
        close_old_connections()
        return True

    def _run(self, name: str, step: Step) -> str | None:
        """Run the step; return why it failed."""
        try:
            if step.by_leader:
                with self._leadership.fenced():
                    step.run()
            else:
                step.run()
        except Exception as error:
            if not step.by_leader or self._leadership.holds():
                self._failures.failed(f"step {name}", error)
            return text_of(error)
        self._failures.works(f"step {name}")
        return None

    def _described(self, step: Step, at: float, took_s: float = 0.0, error: str = "") -> StepReport:
        return StepReport(
            at=at,
            every_s=step.every_s,
            took_s=round(took_s, 3),
            what=step.what,
            worker=self._leadership.worker,
            error=error,
        )

    def _report(self, name: str, step: Step, report: StepReport) -> None:
        if self._reported.get(name) == report:
            return
        self._reported[name] = report
        if not step.by_leader or self._leadership.holds():
            reports.write(name, report)


class Schedule:
    """All lanes of one control worker, and the thread that maintains the lease."""

    def __init__(self, worker: str, steps: Mapping[str, Step]) -> None:
        self.leadership = Leadership(worker)
        self._steps = steps
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._kept_at = time.time()  # when the lease was last read, and written if held
        self._missed = False

    def start(self) -> None:
        self._thread("lease", self._lead)
        for lane in sorted({step.lane for step in self._steps.values()}):
            mine = {name: step for name, step in self._steps.items() if step.lane == lane}
            self._thread(lane, functools.partial(self._loop, StepThread(mine, self.leadership).step))

    def stop(self, within_s: float = 1.0) -> None:
        """Wait for running steps. A step that takes longer cannot write once another worker has taken over."""
        self.end()
        until = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """Begin no further steps and let another worker lead, although jobs may still run here for a long time."""
        self._stopping.set()

    def _thread(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=f"steps: {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _loop(self, step: Callable[[], float]) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(step())

    def _lead(self) -> None:
        self._loop(self._keep_lease)
        with contextlib.suppress(DatabaseError):
            self.leadership.release()
        close_old_connections()

    def _keep_lease(self) -> float:
        led = self.leadership.holds()
        try:
            self.leadership.step()
        except Exception as error:
            log.warning("%s cannot reach the lease: %s", self.leadership.worker, error)
            self._missed = True
            reports.write(reports.LEASE, self._lease_report(text_of(error)))
        else:
            if self.leadership.holds() and (self._missed or not led):
                reports.forget_all_but(self._steps)
            self._kept_at, self._missed = time.time(), False
        close_old_connections()
        reports.tell_worker(self.leadership.worker)
        return BEAT_S

    def _lease_report(self, error: str) -> StepReport:
        what, worker = "keeping the lease of control workers", self.leadership.worker
        return StepReport(at=self._kept_at, every_s=BEAT_S, took_s=0.0, what=what, worker=worker, error=error)
