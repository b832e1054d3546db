"""A new pool costs the reconciler the same however many pools are declared with it."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet import services
from fleet.control.publish import publish_step
from fleet.control.reconciler import reconcile_step
from fleet.models import Instance, Node, Pool
from fleet.tests.world import document, roll_back

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_kind", "live_redis")]


def queries_for(pools: int) -> dict[str, int]:
    """Count the queries of each step for this many new pools, until a step has nothing to do."""
    Instance.objects.all().delete()
    Pool.objects.all().delete()
    Node.objects.update_or_create(name="local", defaults={"last_seen": timezone.now()})
    whole = document(1)
    whole["spec"]["pools"] = [document(1, f"p{number}")["spec"]["pools"][0] for number in range(pools)]
    services.apply_fleet(whole, "ada")
    found = {}
    for kind in ("create", "start", "nothing"):
        with CaptureQueriesContext(connection) as queries:
            done = reconcile_step(timezone.now(), lambda *order: None, roll_back)
        assert {action.kind for action in done} == ({kind} if kind != "nothing" else set())
        assert len(done) == (pools if kind != "nothing" else 0)
        found[kind] = len(queries)
    with CaptureQueriesContext(connection) as queries:
        publish_step()
    return found | {"publish": len(queries)}


def test_each_new_pool_costs_the_reconciler_the_same_few_queries_whatever_the_number_of_pools() -> None:
    queries_for(1)  # some rows are created only once
    few, more, many = (queries_for(pools) for pools in (2, 6, 14))
    assert {kind: (more[kind] - few[kind]) / 4 for kind in few} == {kind: (many[kind] - more[kind]) / 8 for kind in few}
    each = {kind: (many[kind] - more[kind]) / 8 for kind in few}
    assert each["nothing"] == 0
    assert max(each.values()) <= (
        15 if connection.vendor == "sqlite" else 17
    )  # PostgreSQL locks the rows that it updates
