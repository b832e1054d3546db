"""Freezes are checked, audited, changed and removed."""

from typing import Any

import pytest
from django.http import Http404
from msgspec.structs import replace

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.deliveries.tests.conftest import ADA
from controlplane.traffic.deliveries.timing import freezing
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.policies.errors import NoSuchPolicy
from router.contract.values.problem import InvalidInput

WEEKLY = FreezeRule(
    "weekends",
    ("default",),
    "2026-01-02T18:00",
    "2026-01-05T07:00",
    "Europe/Berlin",
    "FREQ=WEEKLY",
    reason="nobody is there",
)

pytestmark = pytest.mark.usefixtures("policy")


def test_a_freeze_is_added_changed_and_removed_with_audit_entries() -> None:
    row = freezing.add_freeze(WEEKLY, ADA)
    row = freezing.change_freeze(row, {"behaviour": "abort", "policies": ()}, ADA)
    assert (freezing.freeze(row.pk).behaviour, row.policies, row.created_by) == ("abort", [], "ada")
    freezing.remove_freeze(row, ADA, "over")
    with pytest.raises(Http404, match="there is no freeze weekends"):
        freezing.remove_freeze(row, ADA)
    with pytest.raises(NoSuchPolicy, match="there is no freeze"):
        freezing.freeze(row.pk)
    found = AuditEntry.objects.filter(action__startswith="freeze.").order_by("pk")
    assert list(found.values_list("action", "subject", "reason")) == [
        ("freeze.add", "freeze weekends", "nobody is there"),
        ("freeze.change", "freeze weekends", "nobody is there"),
        ("freeze.remove", "freeze weekends", "over"),
    ]


def test_a_removed_freeze_cannot_be_changed() -> None:
    row = freezing.add_freeze(WEEKLY, ADA)
    freezing.remove_freeze(row, ADA)
    with pytest.raises(Http404, match="there is no freeze weekends"):
        freezing.change_freeze(row, {"behaviour": "abort"}, ADA)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"policies": ("gone",)}, "policies[0]"),
        ({"start": "tomorrow"}, "start"),
        ({"end": "2026-01-02T17:00"}, "end"),
        ({"zone": "Mars"}, "zone"),
        ({"rrule": "FREQ=HOURLY"}, "rrule"),
        ({"behaviour": "panic"}, "behaviour"),
        ({"reason": ""}, "reason"),
    ],
)
def test_a_refused_field_is_named(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        freezing.add_freeze(replace(WEEKLY, **change), ADA)
    assert raised.value.problems[0].path == path
    assert not Freeze.objects.exists()
