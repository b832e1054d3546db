"""The tests that also run on PostgreSQL."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.testing import on_postgres, shows, uses_database


@pytest.mark.django_db
def test_a_marked_test_uses_the_database(request: pytest.FixtureRequest) -> None:
    assert uses_database(request.node)


def test_a_test_uses_the_database_if_one_of_its_fixtures_does(
    vera_client: object, request: pytest.FixtureRequest
) -> None:
    assert uses_database(request.node)


def test_a_test_with_redis_alone_does_not_use_the_database(request: pytest.FixtureRequest, live_redis: object) -> None:
    assert not uses_database(request.node)


@pytest.mark.parametrize(
    ("name", "is_of_pages"), [("test_key_page.py", True), ("test_pages.py", True), ("test_paging.py", False)]
)
def test_tests_of_pages_are_recognised_by_the_name_of_their_file(name: str, is_of_pages: bool) -> None:
    item: Any = SimpleNamespace(path=Path(name))
    assert shows(item) is is_of_pages


class Collected:
    fixturenames = ()

    def __init__(self, name: str, **committing: bool) -> None:
        self.name, self.nodeid, self.path = name, f"test_pools.py::{name}", Path("test_pools.py")
        self.get_closest_marker = {"django_db": SimpleNamespace(kwargs=committing)}.get


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("assert Pool.objects.exists()", {"a[0]", "c", "e", "writes"}),
        ("with pytest.raises(IntegrityError):", {"a[0]", "b", "c", "d", "e", "writes"}),
    ],
)
def test_tests_that_commit_run_and_three_others_per_file_or_all_in_files_about_databases(
    text: str, names: set[str]
) -> None:
    tests: list[Any] = [Collected(name) for name in ("a[0]", "a[1]", "b", "c", "d", "e")]
    tests.append(Collected("writes", transaction=True))
    assert {test.name for test in on_postgres(tests, text)} == names
