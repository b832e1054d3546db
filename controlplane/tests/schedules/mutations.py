"""Fixes reverted one at a time: a machine must find the fault that each prevents."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from django.utils import timezone

from controlplane.base.schedule import lease
from controlplane.base.schedule.lease import Leadership
from controlplane.base.schedule.models import Lease
from controlplane.traffic.deliveries import services as deliveries
from controlplane.traffic.deliveries import states
from controlplane.traffic.deliveries.going_live import approvals, rules
from controlplane.traffic.policies import services
from fleet import jobs
from fleet.redis import ordered_write

TakeOut = Callable[[pytest.MonkeyPatch], None]


def plain_set(patch: pytest.MonkeyPatch) -> None:
    """Redis accepts every value, however old."""
    blind = ordered_write._WRITE.replace("local before = held(mark)", "local before = 0")
    assert blind != ordered_write._WRITE
    patch.setattr(ordered_write, "_WRITE", blind)


def read_before_order(patch: pytest.MonkeyPatch) -> None:
    """The view is read before its order number is drawn, so a higher number may belong to an older view."""

    def in_two_steps(read: Callable[[], ordered_write.Published]) -> tuple[int, ordered_write.Published]:
        found = read()
        return real(lambda: {})[0], found

    real = ordered_write.read_in_order
    patch.setattr(ordered_write, "read_in_order", in_two_steps)


def rules_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Rules exist, but no operation checks them."""
    patch.setattr(deliveries, "check", lambda change: None)


def rules_asked_early(patch: pytest.MonkeyPatch) -> None:
    """A publication checks the rules before its transaction, when they may still change or not exist yet."""

    def store(change: rules.Change, *args: object, **options: object) -> object:
        deliveries.check(change)
        return real(replace(change, way=rules.Way.ABORT), *args, **options)

    real: Any = services._store
    patch.setattr(services, "_store", store)


def own_approval_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "refusal", lambda *people: "")


def never_is_not_direct(patch: pytest.MonkeyPatch) -> None:
    """`direct: never` is ignored."""
    patch.setitem(cast(dict[str, Any], rules.RULES), "direct", lambda change: None)


def freezes_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(cast(dict[str, Any], rules.RULES), "freeze", lambda change: None)


def keeps_its_share(patch: pytest.MonkeyPatch) -> None:
    """A delivery that is stalled keeps the share of its step."""
    patch.setattr(states, "STILL", frozenset())


PUBLICATION: dict[str, TakeOut] = {
    each.__name__: each
    for each in (
        plain_set,
        read_before_order,
        rules_not_asked,
        rules_asked_early,
        own_approval_counts,
        never_is_not_direct,
        freezes_pass,
        keeps_its_share,
    )
}


def unfenced_end(patch: pytest.MonkeyPatch) -> None:
    """A worker ends whatever runs under its job's number."""

    def end(job: jobs.Job, status: str, cause: str = "", **values: object) -> bool:
        running = type(job)._default_manager.filter(pk=job.pk, status=jobs.RUNNING)
        return bool(running.update(status=status, cause=cause, ended_at=timezone.now(), **values))

    patch.setattr(jobs, "end", end)


JOBS: dict[str, TakeOut] = {unfenced_end.__name__: unfenced_end}


def steps_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A worker that leads when a step begins may write until the step's end."""
    patch.setattr(Leadership, "fenced", lambda leadership: contextlib.nullcontext())


def fence_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A step trusts its own worker's clock instead of comparing the token in the database."""
    patch.setattr(Leadership, "_confirm", lambda leadership, token: None)


def fence_compared_early(patch: pytest.MonkeyPatch) -> None:
    """The token is compared before the transaction that writes, not inside it."""
    real = Leadership._confirm

    def check(leadership: Leadership, token: int) -> None:
        if not lease.connection.in_atomic_block:
            real(leadership, token)

    patch.setattr(Leadership, "_check", check)
    patch.setattr(Leadership, "_confirm", lambda leadership, token: None)


def renewal_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A worker that wakes up assumes that it still holds the lease."""

    def step(leadership: Leadership) -> None:
        if leadership.token == lease.NONE:
            real(leadership)
            return
        leadership._mine().update(beat=lease.F("beat") + 1)
        leadership._renewed_at = leadership._clock()

    real = Leadership.step
    patch.setattr(Leadership, "step", step)


def seen_before_it_was_read(patch: pytest.MonkeyPatch) -> None:
    """A waiting worker counts the silence from before its poll, which may have taken long."""

    def is_free(leadership: Leadership, row: Lease, began: float) -> bool:
        clock, leadership._clock = leadership._clock, lambda: began
        try:
            return real(leadership, row, began)
        finally:
            leadership._clock = clock

    real = Leadership._is_free
    patch.setattr(Leadership, "_is_free", is_free)


def not_renewed(patch: pytest.MonkeyPatch) -> None:
    """The leader does not write its renewals, so others cannot see them."""
    patch.setattr(lease, "F", lambda name: 0)


def never_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "SILENT_S", float("inf"))


def held_for_too_long(patch: pytest.MonkeyPatch) -> None:
    """A holder without a renewal continues when another may have taken over."""
    patch.setattr(lease, "HELD_S", 2 * lease.SILENT_S)


def taken_by_whoever_comes(patch: pytest.MonkeyPatch) -> None:
    """A worker that saw the silence takes the lease even if another has taken it since."""

    def take(leadership: Leadership, row: Lease, began: float) -> None:
        taken = {"token": row.token + 1, "holder": leadership.worker, "process": lease.process_identity.own()}
        Lease.objects.filter(name=row.name).update(**taken)
        leadership.token, leadership._renewed_at = row.token + 1, began

    patch.setattr(Leadership, "_take", take)


def gone_is_not_known(patch: pytest.MonkeyPatch) -> None:
    """Only silence shows that a worker is gone."""

    def is_free(leadership: Leadership, row: Lease, began: float) -> bool:
        row.process = ""
        return real(leadership, row, began)

    real = Leadership._is_free

    patch.setattr(Leadership, "_is_free", is_free)


def not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A worker that ends does not give the lease back."""
    patch.setattr(Leadership, "release", lambda leadership: setattr(leadership, "token", lease.NONE))


LEASE: dict[str, TakeOut] = {
    each.__name__: each
    for each in (
        steps_not_fenced,
        fence_not_compared,
        fence_compared_early,
        renewal_not_looked_at,
        seen_before_it_was_read,
        not_renewed,
        never_expires,
        held_for_too_long,
        taken_by_whoever_comes,
        gone_is_not_known,
        not_given_back,
    )
}
