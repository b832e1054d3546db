"""Mends taken out again, one at a time: what each kept from happening must be found by a machine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from django.utils import timezone

from controlplane.deliveries import approvals, rules
from controlplane.deliveries import services as deliveries
from controlplane.policies import services
from fleet import jobs, ordered_write

TakeOut = Callable[[pytest.MonkeyPatch], None]


def plain_set(patch: pytest.MonkeyPatch) -> None:
    """Redis takes whatever comes, however old it is."""
    blind = ordered_write._WRITE.replace("local before = held(mark)", "local before = 0")
    assert blind != ordered_write._WRITE
    patch.setattr(ordered_write, "_WRITE", blind)


def read_before_order(patch: pytest.MonkeyPatch) -> None:
    """The view is read first and gets its order afterwards: a later order may hold an older view."""

    def in_two_steps(read: Callable[[], ordered_write.Published]) -> tuple[int, ordered_write.Published]:
        found = read()
        return real(lambda: {})[0], found

    real = ordered_write.read_in_order
    patch.setattr(ordered_write, "read_in_order", in_two_steps)


def rules_not_asked(patch: pytest.MonkeyPatch) -> None:
    """There are rules, and no door asks them."""
    patch.setattr(deliveries, "check", lambda change: None)


def rules_asked_early(patch: pytest.MonkeyPatch) -> None:
    """A publication asks the rules before its transaction, where they may be others by then: none are asked there."""

    def store(change: rules.Change, *args: object, **options: object) -> object:
        deliveries.check(change)
        return real(replace(change, way=rules.Way.ABORT), *args, **options)

    real: Any = services._store
    patch.setattr(services, "_store", store)


def own_approval_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "refusal", lambda *people: "")


def never_is_not_direct(patch: pytest.MonkeyPatch) -> None:
    """`direct: never` is read as nothing."""
    patch.setitem(cast(dict[str, Any], rules.RULES), "direct", lambda change: None)


def freezes_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(cast(dict[str, Any], rules.RULES), "freeze", lambda change: None)


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
    )
}


def unfenced_end(patch: pytest.MonkeyPatch) -> None:
    """A worker ends whatever runs under its job's number."""

    def end(job: jobs.Job, status: str, cause: str = "", **values: object) -> bool:
        running = type(job)._default_manager.filter(pk=job.pk, status=jobs.RUNNING)
        return bool(running.update(status=status, cause=cause, ended_at=timezone.now(), **values))

    patch.setattr(jobs, "end", end)


JOBS: dict[str, TakeOut] = {unfenced_end.__name__: unfenced_end}
