"""A small fleet of real processes, driven step by step as Celery would drive it."""

import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from fleet import selectors, services
from fleet.control import node_agent, sleep
from fleet.control.node_agent import in_seconds
from fleet.control.reconciler import reconcile_step
from fleet.control.rollback import rollback_pool
from fleet.kinds.kind import Kind, Launch
from fleet.kinds.options.option import option
from fleet.kinds.wire import KvWire
from fleet.models import Instance, PoolVersion, State
from fleet.node import fencing, logs
from fleet.node import process as launch
from fleet.observe.scrape import Scraper
from fleet.redis import connect
from router.contract.metrics.engine_metrics import VLLM_SCRAPE
from router.contract.redis import redis_keys
from router.tests.values import loaded

STANDIN = Path(__file__).with_name("standin.py")


@dataclass(frozen=True)
class FakeSpec:
    dies: str = option("", "Last words", kind="text")
    flavour: int = option(0, "Flavour", range=(0, 9))
    after: str = option("", "Needed pool", kind="text")
    models: int = option(0, "Models", "Besides its own, from the start.", range=(0, 1_000_000))


def _command(spec: FakeSpec, launch: Launch) -> list[str]:
    argv = [launch.python, str(STANDIN), "--port", str(launch.ports["http"]), "--model", launch.model]
    argv += ["--models", str(spec.models)]
    return [*argv, "--dies", spec.dies] if spec.dies else argv


FAKE = Kind(
    name="fake",
    title="Stand-in",
    spec=FakeSpec,
    ports=("http",),
    command=_command,
    environment=lambda spec, launch: {},
    health_path="/health",
    models_path="/v1/models",
    metrics_path="/metrics",
    scrape=VLLM_SCRAPE,
    load_timeout_s=30,
    drain_timeout_s=60,
    grace_s=5,
    service="http",
    can_sleep=lambda spec: spec.flavour != 9,
    needs=lambda spec: (spec.after,) if spec.after else (),
    wire=lambda spec, launch: KvWire(tokenizer=f"{spec.flavour} {launch.ordinal}" if spec.flavour else ""),
)


def document(replicas: int = 1, name: str = "p", **engine: Any) -> dict[str, Any]:
    pool = {"name": name, "model": "m", "kind": "fake", "replicas": replicas, "engine": engine}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}


def deliver(order: str, node: str, instance: str, epoch: int) -> None:
    """Carry out an order immediately, as the node's worker would."""
    if order == "start":
        node_agent.start_instance(instance, epoch)
    elif order in ("sleep", "wake"):
        (sleep.sleep_instance if order == "sleep" else sleep.wake_instance)(instance, epoch)
    else:
        node_agent.signal_instance(instance, epoch, kill=order == "kill")


def roll_back(pool: str, reason: str) -> PoolVersion:
    """Roll back without consulting policies, since there are none."""
    return rollback_pool(pool, "weir", reason)


class World:
    def __init__(self) -> None:
        self.scraper = Scraper()

    def apply(self, *words: Any, **engine: Any) -> None:
        services.apply_fleet(document(*words, **engine), "ada")

    def tick(self) -> None:
        now = timezone.now()
        self.scraper.step(now)
        reconcile_step(now, deliver, roll_back)

    def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, f"not within {limit_s} s; {self.states()}"
            self.tick()
            time.sleep(0.04)

    def until_ready(self, count: int, pool: str = "p") -> None:
        self.until(lambda: selectors.pool_ready(pool) == (count, count))

    def states(self) -> dict[str, str]:
        return {row.name: f"{row.state}: {row.reason}" for row in Instance.objects.all()}

    def one(self, name: str = "p-0") -> Instance:
        return selectors.instance(name)

    def age(self, seconds: float, name: str = "p-0") -> None:
        """Move the times in the instance's record into the past."""
        row = self.one(name)
        past = {key: getattr(row, key) for key in ("since", "next_start_at", "stop_deadline")}
        changes = {key: in_seconds(value, -seconds) for key, value in past.items() if value is not None}
        Instance.objects.filter(pk=row.pk).update(**changes)

    def published(self, pool: str = "p") -> dict[str, Any]:
        value = loaded(connect().get(redis_keys.fleet_key(pool)))
        return {entry["id"]: entry for entry in value["instances"]} if value else {}

    def tell(self, name: str = "p-0", **behaviour: Any) -> None:
        request = urllib.request.Request(self.one(name).url + "/set", json.dumps(behaviour).encode(), method="POST")
        urllib.request.urlopen(request, timeout=5).read()

    def is_in(self, state: State, name: str = "p-0") -> Callable[[], bool]:
        return lambda: Instance.objects.filter(name=name, state=state).exists()

    def processes(self, name: str = "p-0") -> list[tuple[int, float]]:
        return launch.find(fencing.markers(name, "local"))

    def close(self) -> None:
        self.scraper.close()
        for pid, started in launch.find({"WEIR_FLEET": str(settings.DATA_DIR)}):
            launch.stop(pid, started, grace_s=0)
        shutil.rmtree(logs.folder(), ignore_errors=True)  # the next test's instances have the same names
