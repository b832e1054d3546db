from typing import TYPE_CHECKING

import pytest
import redis

from controlplane.traffic.policies.tests.conftest import policy, pool  # noqa: F401  (fixtures)

if TYPE_CHECKING:
    from controlplane.traffic.deliveries.judge.tests.test_step import Fleet


@pytest.fixture
def fleet(live_redis: redis.Redis) -> "Fleet":
    from controlplane.traffic.deliveries.judge.tests.test_step import Fleet

    return Fleet(live_redis)
