from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from fleet.control import launchers, sleep
from fleet.kinds import KINDS
from fleet.tests.cluster import Cluster
from fleet.tests.world import FAKE, World
from router.tests.ports import engine_ports


@pytest.fixture
def fake_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "fake", FAKE)


@pytest.fixture
def world(
    db: None, live_redis: redis.Redis, fake_kind: None, settings: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    settings.ENGINE_PORTS = engine_ports()  # type: ignore[attr-defined]
    monkeypatch.setattr(sleep, "_acted", {})  # each test's first instance is number 1
    made = World()
    yield made
    made.close()


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """Yield a function that creates fake API servers; the kubeconfig of the latest one applies."""
    made: list[Cluster] = []

    def make(kubelet: bool = False) -> Cluster:
        made.append(Cluster(tmp_path, kubelet))
        monkeypatch.setenv("KUBECONFIG", str(made[-1].kubeconfig()))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def on_kubernetes(settings: object) -> Iterator[None]:
    """Make this process a node whose instances are Pods."""
    settings.KUBERNETES_NAMESPACE = "weir"  # type: ignore[attr-defined]
    launchers.forget()
    yield
    launchers.current().close()
    launchers.forget()
