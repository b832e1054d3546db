"""The base of previews, tunings and plans: a job that simulates a trace, in most cases under versions of a policy on a
pool."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import redis
from django.apps import apps
from django.db import models, transaction
from django.urls import reverse
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.analysis.types import Caution, PlayedTrace
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.traces import library
from controlplane.evidence.traces.types import BadTrace
from controlplane.evidence.twin.pool_model import Modelled, NotModelled
from controlplane.people.audit.services import Actor, record
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import NoSuchPolicy, PolicyError
from controlplane.traffic.policies.models import Policy
from fleet import jobs, selectors
from fleet.models import Pool
from fleet.subprocess import SubprocessFailed
from router.contract.values.problem import InvalidInput
from router.contract.values.reading import read_value

EXPECTED = (library.TraceError, BadTrace, SubprocessFailed, PolicyError, InvalidInput, NotModelled, redis.RedisError)
SHOWN = "live_version", "pool", "status", "done", "total", "cause", "actor", "created_at", "started_at", "ended_at"
NUMBER_MAX = 2**31 - 1  # largest row number that every database can store


class TwinJob(jobs.Job):
    trace_name = models.CharField(max_length=120)
    trace = models.JSONField(default=dict)  # TrafficPart.facts
    max_requests = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    total: "models.PositiveIntegerField[int, int]"
    created_at = models.DateTimeField(default=timezone.now)
    result = models.JSONField(null=True, blank=True)  # null until done

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    @property
    def page(self) -> str:
        return reverse(str(self._meta.verbose_name), args=[self.pk])

    @property
    def compared(self) -> str:
        """Description of the comparison."""
        raise NotImplementedError

    def siblings(self) -> "models.QuerySet[Any]":
        """Return the jobs that count together towards the limit of kept jobs, newest first, including this one."""
        return type(self)._default_manager.all()


class PolicyJob(TwinJob):
    policy: "models.ForeignKey[Policy, Policy]"
    live_version = models.PositiveIntegerField()
    pool = models.CharField(max_length=63)
    twin = models.JSONField(default=dict)  # `about`, and the facts added by the job

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{super().__str__()} of {self.policy.name}"

    @property
    def page(self) -> str:
        return reverse(str(self._meta.verbose_name), args=[self.policy.name, self.pk])

    @property
    def compared(self) -> str:
        return f"pool {self.pool}, against v{self.live_version}"

    def siblings(self) -> "models.QuerySet[Any]":
        return of_policy(type(self), self.policy)


J = TypeVar("J", bound=PolicyJob)
T = TypeVar("T", bound=TwinJob)


def of_policy(model: type[J], policy: Policy) -> "models.QuerySet[J]":
    """Return the policy's jobs, newest first."""
    return model._default_manager.filter(policy=policy).select_related("policy")


def latest(count: int) -> list[TwinJob]:
    """Return the newest previews, tunings and plans."""
    found: list[TwinJob] = []
    for model in apps.get_models():
        if issubclass(model, TwinJob):
            large = [field.name for field in model._meta.fields if isinstance(field, models.JSONField)]
            rows = model._default_manager.defer(*set(large) - {"asked"})
            found += rows.select_related(*["policy"] * issubclass(model, PolicyJob))[:count]
    return sorted(found, key=lambda job: job.created_at, reverse=True)[:count]


def numbered(model: type[J], policy: str, number: int) -> J:
    """Return the job of a policy with this number. Raise NoSuchPolicy."""
    job = of_policy(model, policies.policy(policy)).filter(pk=number).first() if number <= NUMBER_MAX else None
    if job is None:
        raise NoSuchPolicy(f"policy {policy} has no {model._meta.model_name} {number}; the newest ones are kept")
    return job


def asked_again(model: type[T], key: str) -> T | None:
    """Return an earlier job with the same question, requested again; one that failed or was cancelled is computed
    again."""
    rows = model._default_manager.filter(key=key).exclude(status__in=(jobs.FAILED, jobs.CANCELLED))
    known = rows.first()
    if known is not None:
        rows.filter(pk=known.pk).update(asked_at=timezone.now())
        known.refresh_from_db()
    return known


def start(job: TwinJob, actor: Actor, about: Sequence[str], kept: int) -> None:
    """Store a new job and send it to the workers."""
    store(job, actor, about, kept)
    jobs.send(job)


def store(job: TwinJob, actor: Actor, about: Sequence[str], kept: int) -> None:
    """Save a new job and an audit entry with the fields `about`; keep only the `kept` newest of its siblings."""
    job.actor = actor.name[:200]
    with transaction.atomic():
        job.save()
        record(actor, f"{job._meta.verbose_name}.start", str(job), after={name: getattr(job, name) for name in about})
        jobs.forget_old(job.siblings(), kept)


def perform(model: type[T], job_id: int, work: Callable[[T], dict[str, Any]]) -> None:
    """Perform a job; see jobs.perform."""
    jobs.perform(model, job_id, work, EXPECTED)


def as_seen(job: T, if_match: str | None) -> AbstractContextManager[T]:
    return held(job.siblings().filter(pk=job.pk), f"{job._meta.verbose_name} {job.pk}", if_match)


def cancel(job: TwinJob, actor: Actor, *, if_match: str | None = None) -> bool:
    """Cancel the job, which stops within a second if it is running. Return False if it has already ended. Raise
    ChangedMeanwhile."""
    with as_seen(job, if_match):
        if not jobs.cancel(job, actor.name):
            return False
        record(actor, f"{job._meta.verbose_name}.cancel", str(job))
    return True


def pool_of(job: PolicyJob) -> Pool:
    """Return the job's pool. Raise jobs.JobFailed if it has been removed."""
    try:
        return selectors.pool(job.pool)
    except Pool.DoesNotExist:
        raise jobs.JobFailed(f"pool {job.pool} is no longer there") from None


def about(twin: Modelled) -> dict[str, Any]:
    """Return the description of the engine models, as stored."""
    return {"basis": twin.basis, "about": twin.about, "expected": twin.expected}


def shown(job: PolicyJob, *names: str) -> dict[str, Any]:
    """Return the fields that every job of a policy has in REST, together with the given ones."""
    return {"id": job.pk, "policy": job.policy.name, **{name: getattr(job, name) for name in (*SHOWN, *names)}}


def of_origin(job: PolicyJob, pool: Pool, part: TrafficPart) -> list[Caution]:
    """Return cautions about where the job's traffic was recorded."""
    measured = [request.measured for request in part.trace.requests if request.measured is not None]
    pools, models = (each.pool for each in measured), (each.model for each in measured)
    return trust.of_origin(job.trace_name, pool.name, pool.model, pools=pools, models=models)


def left_s(job: TwinJob, now: datetime) -> float | None:
    """Estimate the seconds left at the pace so far; None while there is no pace."""
    if job.status != jobs.RUNNING or job.started_at is None or not job.done:
        return None
    elapsed_s = (now - job.started_at).total_seconds()
    return round(max(0.0, elapsed_s * (job.total - job.done) / job.done), 1)


class TrafficFacts(msgspec.Struct, frozen=True):
    """TrafficPart.facts as stored; empty until the traffic is chosen."""

    source: str | None = None
    requests: int | None = None
    played: int | None = None
    first_at: float | None = None  # Unix s
    last_at: float | None = None


def trace_of(job: TwinJob, now: datetime) -> PlayedTrace:
    facts = read_value(job.trace, TrafficFacts)
    age_s = None if facts.last_at is None else round(max(0.0, now.timestamp() - facts.last_at), 1)
    return {"name": job.trace_name, **msgspec.structs.asdict(facts), "age_s": age_s}  # type: ignore[typeddict-item]
