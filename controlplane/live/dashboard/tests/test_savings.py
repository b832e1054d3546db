"""The saving of a live version on Live and the wall: simulated, scaled to the load, and absent without a basis."""

import time
from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.live.dashboard import step
from controlplane.live.dashboard.frame import savings
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from router.contract.redis import codec, redis_keys
from router.contract.redis.use import SavingLine, SavingLines

LINE = SavingLine(
    policy="default", version=3, before=2, pool="demo", preview=7, requests=2000, at=1_700_000_000.0, gpu_s=0.01,
    dollars=1e-4, low=0.5, high=1.5,
)  # fmt: skip


def frame(n: int = 120, *, policy: str = "default", version: int = 3) -> dict[str, Any]:
    classes = {"demo": {"warm": {"n": n, "window_s": 60}, "medium": None}}
    return {"policies": {"demo": {"policy": policy, "version": version}}, "classes": classes}


def line(**changes: Any) -> SavingLine:
    return SavingLine(**{name: getattr(LINE, name) for name in LINE.__struct_fields__} | changes)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (LINE, "$17.3 a day less than v2 (8.64 to 25.9), n = 2,000"),  # 2 requests/s of 1e-4 $
        (line(dollars=-1e-4), "$17.3 a day more than v2 (8.64 to 25.9), n = 2,000"),
        (line(dollars=None), "0.48 GPU-hours a day less than v2 (0.24 to 0.72), n = 2,000"),
    ],
)
def test_the_saving_per_request_is_scaled_to_the_requests_of_the_last_minute(given: SavingLine, text: str) -> None:
    found = savings.of_pools(frame(), [given])["demo"]
    assert found["text"] == text
    assert "Simulated by preview 7 on 2023-11-14 22:13 UTC with 2,000 requests" in found["title"]
    assert "2 requests/s of the last minute" in found["title"]
    assert found["href"] == "/policies/default/previews/7/"


@pytest.mark.parametrize("given", [frame(0), frame(version=4), frame(policy="other"), {"policies": {}, "classes": {}}])
def test_without_load_or_with_another_version_there_is_no_amount(given: dict[str, Any]) -> None:
    assert savings.of_pools(given, [LINE]) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"low": None, "high": None},  # as written by an older version
        {"low": -0.2, "high": 2.2},
        {"low": 0.0, "high": 2.0},
        {"dollars": 1.7e-7},  # $0.03 a day
        {"dollars": None, "gpu_s": 1e-3},
    ],
)
def test_an_uncertain_or_tiny_saving_is_not_shown(changes: dict[str, Any]) -> None:
    assert savings.of_pools(frame(), [line(**changes)]) == {}


@pytest.mark.django_db
def test_live_and_the_wall_show_the_saving_beside_the_policy(live_redis: redis.Redis, vera_client: Client) -> None:
    now = time.time() + 600  # a slow test does not make the frame old
    FakeFleet(live_redis).write(now)
    live = step.current(live_redis, now)
    assert live is not None
    policy = live["policies"]["demo"]
    value = SavingLines(lines=(line(policy=policy["policy"], version=policy["version"]),))
    live_redis.set(redis_keys.SAVINGS, codec.encode(value))
    step.step(live_redis, now + 2, "worker")
    for path in ("/live", "/wall"):
        assert vera_client.get(path).context["snapshot"]["frame"]["savings"]["demo"]["text"].endswith("), n = 2,000")
