"""Which tests run once more on PostgreSQL."""

import pytest

from controlplane.testing import uses_database


@pytest.mark.django_db
def test_a_marked_test_uses_the_database(request: pytest.FixtureRequest) -> None:
    assert uses_database(request.node)


def test_a_test_uses_the_database_that_one_of_its_fixtures_uses(
    vera_client: object, request: pytest.FixtureRequest
) -> None:
    assert uses_database(request.node)


def test_another_one_does_not(request: pytest.FixtureRequest, live_redis: object) -> None:
    assert not uses_database(request.node)
