import pytest
import redis
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client

from controlplane.traffic.policies.services import ensure_default_policy
from fleet.tests.conftest import fake_kind, world
from fleet.tests.world import World

__all__ = ["fake_kind", "world"]


def signed_in(role: str) -> Client:
    user = get_user_model().objects.create_user(f"{role}-cast")
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator(db: None) -> Client:
    return signed_in("operator")


@pytest.fixture
def viewer(db: None) -> Client:
    return signed_in("viewer")


@pytest.fixture
def fleet(world: World, live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> World:
    """A ready pool `p` of two fake instances, and the default policy. Figures stay fresh however slow the machine
    is."""
    monkeypatch.setattr("controlplane.live.dashboard.frame.status.SAMPLE_STALE_S", 600.0)
    monkeypatch.setattr("controlplane.live.dashboard.frame.status.SAMPLE_OFFLINE_S", 900.0)
    ensure_default_policy()
    world.apply(2)
    world.until_ready(2)
    world.tick()
    return world
