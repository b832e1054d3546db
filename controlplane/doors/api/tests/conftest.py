import pytest

from controlplane.traffic.policies import services
from controlplane.traffic.policies.models import Policy


@pytest.fixture
def policy(redis_away: None, db: None) -> Policy:
    """The default policy, v1; these tests need no Redis."""
    return services.ensure_default_policy()
