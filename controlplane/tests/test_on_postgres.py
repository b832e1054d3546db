"""Which tests run once more on PostgreSQL."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.testing import shows, uses_database


@pytest.mark.django_db
def test_a_marked_test_uses_the_database(request: pytest.FixtureRequest) -> None:
    assert uses_database(request.node)


def test_a_test_uses_the_database_that_one_of_its_fixtures_uses(
    vera_client: object, request: pytest.FixtureRequest
) -> None:
    assert uses_database(request.node)


def test_another_one_does_not(request: pytest.FixtureRequest, live_redis: object) -> None:
    assert not uses_database(request.node)


@pytest.mark.parametrize(
    ("name", "is_of_pages"), [("test_key_page.py", True), ("test_pages.py", True), ("test_paging.py", False)]
)
def test_tests_of_pages_are_known_by_the_name_of_their_file(name: str, is_of_pages: bool) -> None:
    item: Any = SimpleNamespace(path=Path(name))
    assert shows(item) is is_of_pages
