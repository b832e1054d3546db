"""Generated requests to every operation: never answered with 5xx, and only as the contract describes."""

import pytest
import redis
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, settings

from controlplane.management.commands import openapi_export
from controlplane.testing import ApiCaller
from controlplane.traffic.policies import services
from controlplane.traffic.policies.tests.conftest import OTTO, edit, published

pytestmark = pytest.mark.slow

# These operations start processes or end the session under test; other tests cover them.
HANDS_OFF_TAGS = {"fleet", "instances", "experiments", "traces"}
HANDS_OFF = {"revoke_token"}

SCHEMA = schemathesis.openapi.from_dict(openapi_export.schema())
SCHEMA.app = get_wsgi_application()


def is_harmless(operation) -> bool:
    raw = operation.operation.definition.raw
    if raw["operationId"] in HANDS_OFF:
        return False
    return operation.operation.method == "get" or not HANDS_OFF_TAGS & set(raw["tags"])


@pytest.fixture
def world(live_redis: redis.Redis, ada_api: ApiCaller) -> ApiCaller:
    """A policy with three versions and an open draft."""
    policy = services.ensure_default_policy()
    published(policy, heavy_new_tokens=9000)
    services.rollback(policy, 1, OTTO, "to have something to look at")
    edit(policy, heavy_new_tokens=8000)
    return ada_api


@SCHEMA.include(is_harmless).parametrize()
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_generated_requests_get_described_answers(case, world):
    case.call_and_validate(
        headers={"Authorization": f"Bearer {world.token}"},
        excluded_checks=[
            # As usual, an unknown key in a query or an additional header is not refused.
            schemathesis.checks.negative_data_rejection,
            # A schema cannot express rules between fields (thresholds, names, reasons).
            schemathesis.checks.positive_data_acceptance,
        ],
    )
