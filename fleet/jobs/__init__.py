"""Life cycle of long work: experiments, previews, calibrations.

    queued ──claim──► running ──end──► done, failed
       └───────cancel─────┴───────────► cancelled
    failed, cancelled ──resume──► queued, where the job keeps its finished parts
    running ──give_way──► queued, also with its finished parts, so that another owner's job is next

Every arrow is a conditional UPDATE: a message that arrives twice starts a job once, a worker that counts as lost writes
nothing more, and only the first end counts.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import Max, Q, Window
from django.db.models.functions import RowNumber
from django.utils import timezone
from django.utils.module_loading import import_string

from fleet.jobs import process_identity
from fleet.tries import Try

QUEUED, RUNNING, DONE, FAILED, CANCELLED = STATUSES = ("queued", "running", "done", "failed", "cancelled")
ENDED = (DONE, FAILED, CANCELLED)

BEAT_S = 0.5  # interval between two heartbeats, each of which also notices a cancellation
ALIVE_S = 5.0  # interval between heartbeats of the thread that runs beside the work
LOST_S = 60.0  # silence after which a running job's worker counts as lost, unless it is known to have ended before
MOST_LOOKED_AT = 1_000  # queued jobs considered for the next turn, each actor's oldest before any other's second oldest
LONG_AGO = datetime.min.replace(tzinfo=UTC)
TURN_S = 30.0  # running time after which a resumable job gives way to another owner's
SENT_AGAIN_S = 10.0  # time after which a queued job may have lost its message, as after a restart of an empty Redis

log = logging.getLogger(__name__)


class Job(models.Model):
    TASK: ClassVar[str]  # name of the Celery task that performs the job, given its id
    AT_ONCE: ClassVar[int]  # jobs of this model that run at the same time; further ones wait
    SHARE_A_THREAD: ClassVar[bool] = False  # True: one worker runs its jobs of this kind concurrently in one thread
    TURN_FIELDS: ClassVar[tuple[str, ...]] = ()  # fields that `queue` and `startable` read

    status = models.CharField(max_length=12, default=QUEUED, choices=[(s, s) for s in STATUSES])
    cause = models.TextField(blank=True)  # cause of a failure or a cancellation
    actor = models.CharField(max_length=200)
    sent_at = models.DateTimeField(default=timezone.now)  # time when its task was last put on the queue
    started_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=200, blank=True, default="", db_default="")  # fleet/jobs/process_identity.py
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    @property
    def queue(self) -> str:
        return "control"

    @classmethod
    def startable(cls, in_turn: "list[Any]", running: "models.QuerySet[Any]") -> "list[Any]":
        """Return the queued jobs that may start now, beside the running ones, in the order of their turns."""
        return in_turn


J = TypeVar("J", bound=Job)


class Stopped(Exception):
    """The job is no longer running: it was cancelled, or its worker counted as lost."""


class JobFailed(Exception):
    """The work cannot be done. The message has the reason; `values` are fields of the row with more detail."""

    def __init__(self, cause: str, **values: Any) -> None:
        super().__init__(cause)
        self.values = values


def send(job: Job) -> None:
    """Put the task on its queue. Without the broker, the job stays queued and is sent again later."""
    # Imported late, because every process loads the models, but few send jobs.
    import redis
    from kombu.exceptions import OperationalError

    try:
        import_string(settings.JOBS_APP).send_task(job.TASK, args=[job.pk], queue=job.queue)
    except (OperationalError, redis.RedisError) as error:
        log.warning("%s %s could not be sent: %s", job.TASK, job.pk, error)


def send_next(model: type[Job], waited_s: float = 0.0) -> None:
    """Send the next queued jobs that fit, if their task was last sent `waited_s` ago or earlier. Each queue gets the
    whole capacity, so a job whose worker does not run does not hold up other workers.
    """
    queued = model._default_manager.filter(status=QUEUED)
    now, room, chosen = timezone.now(), _room(model), Counter[str]()
    for job in _startable(model) if room else ():
        if chosen[job.queue] < room:
            chosen[job.queue] += 1
            if queued.filter(pk=job.pk, sent_at__lte=now - timedelta(seconds=waited_s)).update(sent_at=now):
                send(job)


def owner_of(actor: str) -> str:
    """Return the user behind an actor. Tokens are written "ci (ada)"; user names have no brackets."""
    return actor[actor.rfind("(") + 1 : -1] if actor.endswith(")") else actor


def _in_turn(model: type[J], leaving: J | None = None) -> list[J]:
    """Return queued jobs: those of the owner with the fewest running or earlier jobs first; among equals, those of the
    owner whose last start is longest ago. `leaving` is a running job that counts as queued."""
    rows, left = model._default_manager.all(), [leaving.pk] if leaving else []
    running = rows.filter(status=RUNNING).exclude(pk__in=left).values_list("actor", flat=True)
    ahead = Counter(owner_of(actor) for actor in running)
    queued = rows.filter(Q(status=QUEUED) | Q(pk__in=left))
    place = Window(RowNumber(), partition_by="actor", order_by="pk")
    read = queued.annotate(place=place).order_by("place", "pk").only("actor", *model.TURN_FIELDS)[:MOST_LOOKED_AT]
    started = rows.filter(started_at__isnull=False).order_by().values_list("actor")
    began: dict[str, datetime] = {}
    for actor, at in started.annotate(Max("started_at")):
        began[owner_of(actor)] = max(at, began.get(owner_of(actor), LONG_AGO))
    turns: list[tuple[int, datetime, int, J]] = []
    for job in sorted(read, key=lambda job: job.pk):
        owner = owner_of(job.actor)
        ahead[owner] += 1
        turns.append((ahead[owner], began.get(owner, LONG_AGO), job.pk, job))
    return [job for *_, job in sorted(turns, key=lambda turn: turn[:3])]


def _startable(model: type[J], leaving: J | None = None) -> list[J]:
    running = model._default_manager.filter(status=RUNNING).exclude(pk=leaving.pk if leaving else None)
    return model.startable(_in_turn(model, leaving), running)


def _room(model: type[Job]) -> int:
    return max(0, model.AT_ONCE - model._default_manager.filter(status=RUNNING).count())


@contextlib.contextmanager
def held(model: type[J], job_id: int) -> Iterator[J | None]:
    """Yield the job whose turn it is when a job's message arrives, if there is one to perform. A separate thread sends
    heartbeats meanwhile, even while the work keeps the processor busy."""
    job = claim_next(model, job_id)
    ended = threading.Event()
    if job is not None:
        threading.Thread(target=_keep_alive, args=(job, ended), name=f"alive: {job.pk}", daemon=True).start()
    try:
        yield job
    finally:
        ended.set()


def _keep_alive(job: Job, ended: threading.Event) -> None:
    while not ended.wait(ALIVE_S):
        try:
            if not of_this_start(job).filter(status=RUNNING).update(heartbeat_at=timezone.now()):
                return
        except Exception as error:  # the database may be reachable again soon
            log.warning("%s %s: no heartbeat: %s", job.TASK, job.pk, error)
        finally:
            connection.close()


def of_this_start(job: J) -> "models.QuerySet[J]":
    """Return the job's row, unless it has been queued again since and thus belongs to another worker."""
    return type(job)._default_manager.filter(pk=job.pk, started_at=job.started_at)


def claim_next(model: type[J], job_id: int) -> J | None:
    """Like `held`, without its heartbeat. Messages arrive in the order of requests; a message only says that its job's
    queue has work, not which job is next."""
    named = model._default_manager.filter(pk=job_id).first()
    if named is None:
        return None
    return _claim(model, lambda: next((job.pk for job in _startable(model) if job.queue == named.queue), None))


def claim(model: type[J], job_id: int) -> J | None:
    """Claim this job, even if it is not its turn."""
    return _claim(model, lambda: job_id)


def _claim(model: type[J], chosen: Callable[[], int | None]) -> J | None:
    with transaction.atomic():
        queued = model._default_manager.filter(status=QUEUED)
        # Claims are serialized; otherwise two that check for capacity at the same moment would both get it. SQLite has
        # only one writer anyway.
        list(queued.order_by("pk").select_for_update().values_list("pk", flat=True))
        job_id = chosen() if _room(model) else None
        now = timezone.now()
        mine = queued.filter(pk=job_id)
        if not mine.update(status=RUNNING, started_at=now, heartbeat_at=now, worker=process_identity.own()):
            return None
    # Only this start of the job: a worker that pauses here until it counts as lost must not get its successor's row.
    return model._default_manager.filter(pk=job_id, started_at=now).first()


def give_way(job: Job) -> bool:
    """Queue a job again after its turn if another owner's job is next. Return True if the work stops here; it continues
    at its next turn.
    """
    if job.started_at is None or timezone.now() - job.started_at < timedelta(seconds=TURN_S):
        return False
    following = next((each for each in _startable(type(job), job) if each.queue == job.queue), job)
    # The start time remains, because it shows when its owner was last served.
    mine, ours = of_this_start(job).filter(status=RUNNING), owner_of(following.actor) == owner_of(job.actor)
    if ours or not mine.update(status=QUEUED, worker="", sent_at=timezone.now()):
        return False
    send_next(type(job))
    return True


def end(job: Job, status: str, cause: str = "", **values: Any) -> bool:
    """Record how a running job ended. Return False if it had already ended, or runs again in another worker."""
    running = of_this_start(job).filter(status=RUNNING)
    return bool(running.update(status=status, cause=cause[:2_000], ended_at=timezone.now(), **values))


def fail(job: Job, cause: str) -> bool:
    """Mark a running job that cannot be done as failed, and send the next one."""
    ended = end(job, FAILED, cause)
    send_next(type(job))
    return ended


def perform(
    model: type[J],
    job_id: int,
    work: Callable[[J], dict[str, Any]],
    expected: tuple[type[Exception], ...],
    end: Callable[..., bool] = end,
) -> bool:
    """Perform a job, unless another worker has claimed it: record its end with the row's values that `work` returns,
    and send the next job. The message of an `expected` error becomes the cause. Return True if the job is done."""
    with held(model, job_id) as job:
        if job is None:
            return False
        done = False
        try:
            values = work(job)
        except Stopped:
            pass
        except JobFailed as error:
            end(job, FAILED, str(error), **error.values)
        except Exception as error:
            end(job, FAILED, cause_of(error, expected))
        else:
            done = end(job, DONE, **values)
        send_next(model)
        return done


def forget_old(jobs: "models.QuerySet[J]", kept: int) -> None:
    """Delete ended jobs, except for the newest ones."""
    for oldest_kept in jobs.order_by("-pk")[kept - 1 : kept].values_list("pk", flat=True):
        jobs.filter(pk__lt=oldest_kept, status__in=ENDED).delete()


def cancel(job: Job, actor: str, **values: Any) -> bool:
    """Cancel a job: a queued job never starts, a running one stops at its next heartbeat. Return False if it has
    already ended."""
    active = type(job)._default_manager.filter(pk=job.pk).exclude(status__in=ENDED)
    ended = active.update(status=CANCELLED, cause=f"cancelled by {actor}", ended_at=timezone.now(), **values)
    job.refresh_from_db()
    return bool(ended)


def resume(job: Job) -> bool:
    """Queue a failed or cancelled job again; return False if it ended in another way."""
    ended = type(job)._default_manager.filter(pk=job.pk, status__in=(FAILED, CANCELLED))
    queued = ended.update(**_QUEUED_AGAIN, cause="", sent_at=timezone.now())
    job.refresh_from_db()
    return bool(queued)


def requeue(job: Job, cause: str, **values: Any) -> bool:
    """Let another worker take over a job whose worker is lost, once: the job keeps `cause`, and a job that already has
    a cause fails."""
    lost = of_this_start(job).filter(status=RUNNING, cause="")
    sent_at = timezone.now() - timedelta(seconds=SENT_AGAIN_S)
    return bool(lost.update(**_QUEUED_AGAIN, cause=cause, sent_at=sent_at, **values))


def run_again(job: Job, cause: str, **values: Any) -> None:
    """Let another worker perform a job whose worker is lost, keeping its finished parts; the second time it fails."""
    if requeue(job, cause, **values):
        send_next(type(job))
    else:
        fail(job, cause)


_QUEUED_AGAIN: dict[str, Any] = {
    "status": QUEUED, "started_at": None, "heartbeat_at": None, "ended_at": None, "worker": ""
}  # fmt: skip


def fail_lost(model: type[J], fail: Callable[[J, str], object], attempt: Try, now: datetime | None = None) -> None:
    """Call `fail`, which ends a job with a cause, for each running job whose worker has ended or fallen silent."""
    for job in model._default_manager.filter(status=RUNNING):
        if cause := lost(job, now):
            with attempt(f"{job._meta.model_name} {job.pk}"):
                fail(job, cause)


def lost(job: Job, now: datetime | None = None) -> str:
    """Return the way in which the job's worker was lost; empty while it may still be alive."""
    if process_identity.is_gone(job.worker):
        return "worker lost: its process ended"
    silent_s = ((now or timezone.now()) - job.heartbeat_at).total_seconds() if job.heartbeat_at else 0.0
    return f"worker lost: no heartbeat for {silent_s:.0f} s" if silent_s > LOST_S else ""


def cause_of(error: Exception, expected: tuple[type[Exception], ...]) -> str:
    """Return the message of an expected error; any other error is logged and named with its type."""
    if isinstance(error, expected):
        return str(error)
    log.error("job crashed", exc_info=error)
    return f"{type(error).__name__}: {error}"


class Heartbeat:
    """Heartbeat of a running job. Its worker calls it often; it is written every BEAT_S, and immediately when the step
    changes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        # Only this start of the job: a worker that counted as lost stops, even if the job runs again in another worker.
        self._running = of_this_start(job).filter(status=RUNNING)
        self._step = ""
        self._written = float("-inf")

    def beat(self, **progress: Any) -> None:
        """Beat. `progress` holds fields to write, `step` among them. Raise Stopped."""
        now, step = time.monotonic(), progress.get("step", self._step)
        if step != self._step or now - self._written >= BEAT_S:
            self._step, self._written = step, now
            self.write(timezone.now(), progress)

    def write(self, at: datetime, progress: dict[str, Any]) -> None:
        if not self._running.update(heartbeat_at=at, **progress):
            raise Stopped
