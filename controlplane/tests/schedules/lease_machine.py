"""The lease of the control workers: holders that stall, wake up, are killed or give it back, and workers that wait
for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from django.db import DatabaseError
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controlplane.base.schedule import lease
from controlplane.base.schedule.lanes import Step, StepThread
from controlplane.base.schedule.lease import BEAT_S, NONE, SILENT_S, Leadership
from controlplane.base.schedule.models import Lease
from controlplane.tests.schedules import database, seams
from controlplane.tests.schedules.scheduler import FAR, Actor, Order, Scheduler, here
from controlplane.tests.schedules.stage import Stage
from fleet.models import Node

WORKERS = 3
MOST_ACTORS = 5
TABLES = [Lease._meta.db_table, Node._meta.db_table]
SILENT_BEATS = round(SILENT_S / BEAT_S)
AFTER_BEATS = SILENT_BEATS + 1  # a healthy leader keeps the lease for longer
DISTURBING = (Order.CUT_BEFORE, Order.TWICE, Order.DIE)
WRITES = st.sampled_from((2, 0, 3, 1))
WHO = st.sampled_from((0, 0, 0, 1, 2, 3))


class TwoLead(AssertionError):
    """More than one worker takes steps, or a worker wrote under a lease that another already had."""


class NobodyLeads(AssertionError):
    """There are workers, but none leads within the guaranteed time; or the lease moves between healthy ones."""


class Worker:
    """A worker from start to end. `process` is the identity that the lease stores and waiting workers look up."""

    def __init__(self, process: str, clock: Callable[[], float]) -> None:
        self.process = process
        self.leadership = Leadership(process, clock=clock)
        self.lane = StepThread({"writes": Step(self.write, BEAT_S, "steps", "writes two rows")}, self.leadership, clock)

    def write(self) -> None:
        """Take a step that reads once and writes twice. Each row contains the token under which it was written."""
        token, written = self.leadership.token, Node.objects.count()
        for number in (1, 2):
            Node.objects.create(name=f"{token}-{self.process}-{written + number}")


class Processes:
    """The operating system's knowledge of the processes."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    @staticmethod
    def own() -> str:
        assert here.actor is not None
        return here.actor.name.partition(":")[0]

    @contextmanager
    def known(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lease.process_identity, "own", self.own)
            patch.setattr(lease.process_identity, "is_gone", lambda process: process in self.gone)
            yield


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        database.empty(TABLES)
        stage.client.flushdb()
        self.scheduler = Scheduler(stage.threads, self.look)
        self.now, self.numbers = 100.0, count(1)
        self.processes = Processes()
        self._known = self.processes.known()
        self._known.__enter__()
        self.workers = [self._born() for _ in range(WORKERS)]  # workers that compete for the lease
        self.leaving: list[Worker] = []  # workers that give the lease back, or have done so
        self.gave_back = set[str]()
        self.token, self.written = NONE, set[str]()
        seams.touched.clear()

    def _born(self) -> Worker:
        return Worker(f"w{next(self.numbers)}", lambda: self.now)

    def look(self) -> None:
        """Check that everything written since the last look was written under the lease's token."""
        if "database" not in seams.touched:
            return
        seams.touched.clear()
        token = Lease.objects.values_list("token", flat=True).first() or NONE
        names = set(Node.objects.values_list("name", flat=True))
        for name in names - self.written:
            if int(name.partition("-")[0]) != token:
                raise TwoLead(f"{name} was written when the lease had the token {token}")
        self.token, self.written = token, names

    def _actor(self, worker: Worker, what: str) -> Actor | None:
        """The thread that renews a worker's lease is one actor, the thread of its steps another."""
        name = f"{worker.process}:{what}"
        return next((actor for actor in self.scheduler.actors if actor.name == name), None)

    def _begin(self, worker: Worker, what: str, work: Callable[[], object], writes: int) -> None:
        """Run the work to its end, or stop it before one of its writes."""
        if self._actor(worker, what) is not None:
            return
        actor = self.scheduler.begin(f"{worker.process}:{what}", work, (DatabaseError,))
        for _ in range(writes):
            self.scheduler.go(actor, "to a write")
        if not writes:
            self.scheduler.go(actor, "to its end")

    # What workers do

    @initialize(is_led=st.sampled_from((True, True, False)))
    def begins(self, is_led: bool) -> None:
        if is_led:
            self._all_beat()

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(which=st.integers(0, WORKERS - 1), writes=WRITES)
    def looks_after_the_lease(self, which: int, writes: int) -> None:
        """Take the lease, rarely interrupted: it is one statement."""
        self._begin(self.workers[which], "lease", self.workers[which].leadership.step, writes % 2)

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(who=WHO, writes=WRITES)
    def takes_a_step(self, who: int, writes: int) -> None:
        worker = self._who(who)
        self._begin(worker, "steps", worker.lane.step, writes)

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(who=WHO, writes=st.sampled_from((0, 0, 1)))
    def ends(self, who: int, writes: int) -> None:
        """Stop a worker by a signal, perhaps during a step, and start another one."""
        worker = self._who(who)
        if self._actor(worker, "lease") is None:
            self.workers[self.workers.index(worker)] = self._born()
            self.leaving.append(worker)
            self._begin(worker, "lease", lambda: self._give_back(worker), writes)

    def _give_back(self, worker: Worker) -> None:
        worker.leadership.release()
        self.gave_back.add(worker.process)

    @rule(who=WHO, where=st.sampled_from(["on this host", "elsewhere"]))
    def is_killed(self, who: int, where: str) -> None:
        """Kill a worker; other workers on this host can see that its process is gone."""
        worker = self._who(who)
        for what in ("lease", "steps"):
            if (actor := self._actor(worker, what)) is not None:
                self.scheduler.go_on(actor, Order.DIE)
        self.processes.gone.update({worker.process} if where == "on this host" else ())
        self.workers[self.workers.index(worker)] = self._born()

    def _who(self, who: int) -> Worker:
        """0: the leader."""
        return (self._leader() if who == 0 else None) or self.workers[max(0, who - 1)]

    # The schedule

    @precondition(lambda self: self.scheduler.actors)
    @rule(which=st.integers(0, MOST_ACTORS - 1), far=st.sampled_from((*FAR, *FAR, *DISTURBING)))
    def goes_on(self, which: int, far: str | Order) -> None:
        actor = self.scheduler.actors[which % len(self.scheduler.actors)]
        if isinstance(far, Order):
            self.scheduler.go_on(actor, far)
        else:
            self.scheduler.go(actor, far)

    @rule(beats=st.sampled_from((SILENT_BEATS + 1, 1, 3, SILENT_BEATS - 1)), is_led=st.booleans())
    def time_passes(self, beats: int, is_led: bool) -> None:
        """Let time pass, perhaps while the leader is stopped. An actor within an operation stays there, as with a
        slow disk."""
        stopped = None if is_led else self._leader()
        for _ in range(beats):
            self._all_beat(stopped)

    @rule(seconds=st.sampled_from((BEAT_S, SILENT_S)))
    def all_stand_still(self, seconds: float) -> None:
        self.now += seconds

    def _all_beat(self, stopped: Worker | None = None) -> None:
        self.now += BEAT_S
        for worker in self.workers:
            if worker is not stopped:
                self._begin(worker, "lease", worker.leadership.step, 0)
                self.at_most_one_leads()

    # The guarantees

    @invariant()
    def at_most_one_leads(self) -> None:
        """By the workers' own clocks, at most one worker leads; a stopped worker that resumes counts as well."""
        leading = [each.process for each in (*self.workers, *self.leaving) if each.leadership.holds()]
        if len(leading) > 1:
            raise TwoLead(f"{' and '.join(leading)} lead at the same time")

    def _leader(self) -> Worker | None:
        return next((worker for worker in self.workers if worker.leadership.holds()), None)

    def teardown(self) -> None:
        try:
            for actor in list(self.scheduler.actors):
                self.scheduler.go(actor, "to its end")
            self._somebody_leads()
            self._and_goes_on()
        finally:
            self.scheduler.kill_all()
            self._known.__exit__(None, None, None)

    def _somebody_leads(self) -> None:
        """A worker may lead immediately after a holder that gave the lease back or is known to be gone, otherwise after
        a long silence.
        """
        row = Lease.objects.first()
        free = row is None or not row.holder or row.process in self.processes.gone | self.gave_back
        within = 1 if free else SILENT_BEATS + 1
        for _ in range(within):
            self._all_beat()
        if self._leader() is None:
            raise NobodyLeads(f"nobody leads after {within} beats, under {row and row.holder!r}")

    def _and_goes_on(self) -> None:
        """A healthy leader keeps the lease, and its steps write."""
        token, before = self.token, len(self.written)
        for _ in range(AFTER_BEATS):
            self._all_beat()
        if self.token != token:
            raise NobodyLeads(f"the lease went from token {token} to {self.token}, and nobody was away")
        leader = self._leader()
        assert leader is not None
        self._begin(leader, "steps", leader.lane.step, 0)
        if len(self.written) == before:
            raise NobodyLeads(f"{leader.process} leads, and its step wrote nothing")
