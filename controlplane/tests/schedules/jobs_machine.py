"""One long job: workers that claim it, pause and come back, the code that declares them lost, and the code that
queues it again."""

from datetime import datetime
from typing import Any

from django.db import DatabaseError
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from controlplane.tests.schedules import database, seams
from controlplane.tests.schedules.scheduler import FAR, Actor, Order, Scheduler
from controlplane.tests.schedules.stage import Stage
from fleet import jobs
from fleet.models import Calibration

EXPECTED = (DatabaseError, jobs.Stopped)
WORKER = "worker"
MOST_ACTORS = 4
BEATS = 1
SELDOM = st.sampled_from((0, 0, 1))


class TwoHolders(AssertionError):
    """A worker changed the job while another one held it."""


class JobsMachine(RuleBasedStateMachine):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        database.empty(stage.tables)
        self.scheduler = Scheduler(stage.threads, self.look)
        self.pk = Calibration.objects.create(instance="demo-0", actor="otto", seconds=1.0).pk
        seams.touched.clear()
        self.row = self._read()
        self.holder: Actor | None = None

    def _read(self) -> dict[str, Any]:
        return Calibration.objects.filter(pk=self.pk).values("status", "started_at", "heartbeat_at", "ended_at").get()

    def look(self) -> None:
        """Check that the last writer of the row was its holder, or no worker."""
        if not seams.touched:
            return
        seams.touched.clear()
        before, self.row = self.row, self._read()
        if before == self.row:
            return
        acting = self.scheduler.acting
        if self.row["status"] == jobs.RUNNING and before["status"] == jobs.QUEUED:
            self.holder = acting
        elif acting.name == WORKER and acting is not self.holder:
            raise TwoHolders(f"the job is another worker's: {before}, and now {self.row}")
        if self.row["status"] != jobs.RUNNING:
            self.holder = None

    # Who begins

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(writes=st.sampled_from((3, 2, 3, 0, 1)), status=st.sampled_from([jobs.DONE, jobs.FAILED]))
    def works(self, writes: int, status: str) -> None:
        self._begin(WORKER, lambda: self._perform(status), writes)

    def _perform(self, status: str) -> None:
        job = jobs.claim(Calibration, self.pk)
        if job is None:
            return
        heartbeat = jobs.Heartbeat(job)
        for _ in range(BEATS):
            heartbeat.write(self._now(), {})
        jobs.end(job, status)

    def _now(self) -> datetime:
        return timezone.now()

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(how=st.sampled_from(["lost", "lost", "cancelled"]), ends=SELDOM, again=SELDOM)
    def comes_again(self, how: str, ends: int, again: int) -> None:
        """Declare the job's worker lost or cancel the job, then queue the job again."""
        job = Calibration.objects.get(pk=self.pk)
        if how == "cancelled":
            self._begin(how, lambda: jobs.cancel(job, "otto"), ends)
        elif job.status == jobs.RUNNING:
            self._begin(how, lambda: jobs.end(job, jobs.FAILED, "worker lost"), ends)
        self._begin("resume", lambda: jobs.resume(job), again)

    def _begin(self, name: str, work: Any, writes: int) -> None:
        actor = self.scheduler.begin(name, work, EXPECTED)
        for _ in range(writes):
            self.scheduler.go(actor, "to a write")
        if not writes:
            self.scheduler.go(actor, "to its end")

    # The schedule

    @precondition(lambda self: self.scheduler.actors)
    @rule(which=st.integers(0, MOST_ACTORS - 1), far=st.sampled_from((*FAR, *FAR, Order.CUT_BEFORE, Order.DIE)))
    def goes_on(self, which: int, far: str | Order) -> None:
        actor = self.scheduler.actors[which % len(self.scheduler.actors)]
        if isinstance(far, Order):
            self.scheduler.go_on(actor, far)
        else:
            self.scheduler.go(actor, far)

    def teardown(self) -> None:
        try:
            for actor in list(self.scheduler.actors):
                self.scheduler.go(actor, "to its end")
        finally:
            self.scheduler.kill_all()
