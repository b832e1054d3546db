"""Adds, changes and removes freezes, each with an audit entry."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from django.db import transaction
from django.utils import timezone
from msgspec.structs import asdict, replace

from controlplane.common.as_seen import held
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.deliveries.timing import freezes
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.policies.drafts.services import check_reason
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.models import Policy
from router.contract.values.problem import InvalidInput, Problem
from router.contract.values.reading import read_value

NAME_MAX = 80


def freeze(pk: int) -> Freeze:
    row = Freeze.objects.filter(pk=pk, removed_at=None).first()
    if row is None:
        raise NoSuchPolicy(f"there is no freeze {pk}")
    return row


def add_freeze(rule: FreezeRule, actor: Actor) -> Freeze:
    """Add a freeze. InvalidInput names every problem."""
    checked = asdict(_checked(rule))
    with transaction.atomic():
        row = Freeze.objects.create(**checked, created_by=actor.name)
        audit.record(actor, "freeze.add", f"freeze {row.name}", row.reason, None, checked)
    return row


def change_freeze(row: Freeze, changes: Mapping[str, object], actor: Actor, *, if_match: str | None = None) -> Freeze:
    """Write the given fields of a rule. Raise Http404 if it has been removed, ChangedMeanwhile, or InvalidInput."""
    with _held(row, if_match) as row:
        before = row.rule
        checked = asdict(_checked(read_value({**asdict(before), **changes}, FreezeRule)))
        Freeze.objects.filter(pk=row.pk).update(**{name: checked[name] for name in changes})
        row.refresh_from_db()
        audit.record(actor, "freeze.change", f"freeze {row.name}", row.reason, asdict(before), checked)
    return row


def remove_freeze(row: Freeze, actor: Actor, reason: str = "", *, if_match: str | None = None) -> None:
    """Remove a freeze. Raise Http404 if it has already been removed, or ChangedMeanwhile."""
    with _held(row, if_match) as row:
        Freeze.objects.filter(pk=row.pk).update(removed_at=timezone.now(), removed_by=actor.name[:200])
        audit.record(actor, "freeze.remove", f"freeze {row.name}", reason, asdict(row.rule), None)


def _held(row: Freeze, if_match: str | None) -> AbstractContextManager[Freeze]:
    return held(Freeze.objects.filter(pk=row.pk, removed_at=None), f"freeze {row.name}", if_match)


def _checked(rule: FreezeRule) -> FreezeRule:
    name = rule.name.strip()
    problems = freezes.problems_of(rule, Policy.objects.values_list("name", flat=True), timezone.now())
    if not 0 < len(name) <= NAME_MAX:
        problems.insert(0, Problem("name", name[:NAME_MAX], "a freeze needs a name", f"1 to {NAME_MAX} characters"))
    if problems:
        raise InvalidInput("the freeze is not valid", tuple(problems))
    return replace(rule, name=name, reason=check_reason(rule.reason))
