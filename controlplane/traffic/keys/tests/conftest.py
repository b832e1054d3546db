import pytest

from fleet.models import Pool


@pytest.fixture
def pools(db):
    """The pools `chat` and `code`."""
    for name in ("chat", "code"):
        Pool.objects.create(name=name)
