import os
from collections.abc import Iterator

import hypothesis
import pytest
import redis

from fleet.kinds import KINDS
from fleet.tests.world import FAKE, World

hypothesis.settings.register_profile("fleet", hypothesis.settings.get_profile("weir"), max_examples=50)
hypothesis.settings.load_profile("fleet")


@pytest.fixture
def fake_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "fake", FAKE)


@pytest.fixture
def world(
    db: None, live_redis: redis.Redis, fake_kind: None, settings: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    # Test processes beside each other must not take each other's ports.
    first = 20_000 + (os.getpid() * 37) % 10_000
    settings.ENGINE_PORTS = (first, first + 40)  # type: ignore[attr-defined]
    made = World()
    yield made
    made.close()
