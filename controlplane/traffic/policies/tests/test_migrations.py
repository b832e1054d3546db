"""Policies of an earlier release keep their live version."""

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = pytest.mark.django_db(transaction=True)


def migrate(*targets: tuple[str, str | None]) -> Any:
    MigrationExecutor(connection).migrate(list(targets))
    return MigrationExecutor(connection).loader.project_state([t for t in targets if t[1]]).apps


@pytest.fixture(autouse=True)
def back_to_the_latest() -> Any:
    yield
    MigrationExecutor(connection).migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())


def test_the_version_with_the_highest_number_is_live() -> None:
    old = migrate(("deliveries", None), ("policies", "0002_version_remembers_its_draft"))
    made = old.get_model("policies", "Policy").objects.create(name="night")
    for number in (1, 2, 3):
        facts = {"document": {}, "sha256": "x", "reason": "r", "actor_kind": "user", "actor_name": "ada"}
        old.get_model("policies", "PolicyVersion").objects.create(policy=made, number=number, **facts)
    new = migrate(("policies", "0003_live_version"))
    assert new.get_model("policies", "Policy").objects.get(name="night").live == 3
