"""A fleet with a simulated and a real pool, a queue that only collects tasks, and ready-made experiments."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from controlplane.evidence.experiments import provenance, services
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.modes import ephemeral_pool
from controlplane.evidence.experiments.record import RecordedTwin
from controlplane.evidence.experiments.results.records import Appender, Record
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.experiments.tests.fake_engine import engine_in_a_thread
from controlplane.evidence.experiments.tests.stand_in import StandIn
from controlplane.evidence.twin.pool_model import Modelled
from controlplane.people.audit.services import Actor

OTTO = Actor("user", "otto")


@pytest.fixture
def demo_pool(db: None) -> Any:
    from fleet.models import Pool

    Pool.objects.create(name="real", model="m", kind="vllm", replicas=1)
    return Pool.objects.create(name="demo", model="llama-3.1-8b", kind="sim", replicas=2, engine={"seed": 1})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the tasks that would be queued."""
    found: list[Any] = []
    monkeypatch.setattr(
        "controlplane.celery.app.send_task", lambda name, args, queue: found.append((name, args, queue))
    )
    return found


@pytest.fixture
def engine() -> Iterator[Any]:
    with engine_in_a_thread() as made:
        yield made


@pytest.fixture
def stand_in(engine: Any, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(engine.url)
    made.install(lambda name, value: monkeypatch.setattr(ephemeral_pool, name, value))
    return made


@pytest.fixture
def asked(demo_pool: Any, sent: Any, data_dir: Any) -> Callable[..., Experiment]:
    def make(**changes: Any) -> Experiment:
        fields = {"duration_s": 10, "time_scale": 100, **changes}
        return services.start_experiment(ExperimentIn.model_validate(body(**fields)), OTTO)

    return make


def read_again(twin: RecordedTwin) -> Modelled:
    """Return the twin as it is restored from the stored JSON record."""
    kept = json.loads(json.dumps(provenance.stored(twin), allow_nan=False))
    return fleets.modelled(msgspec.convert(kept, RecordedTwin, strict=False))


def body(**changes: Any) -> dict[str, Any]:
    """A body that starts an experiment."""
    return {
        "name": "A vs B",
        "trace": "agentic-demo",
        "pool": "demo",
        "mode": "replay",
        "duration_s": 60,
        "time_scale": 10,
        "seeds": [1],
        "arms": ["round_robin", "adaptive_v1"],
        **changes,
    }


def record(index: int, **changes: Any) -> Record:
    """A request that was answered."""
    values: dict[str, Any] = {
        "index": index,
        "session": f"s{index}",
        "sent_s": index * 0.5,
        "late_wall_ms": 0.1,
        "input_tokens": 1000,
        "ttft_ms": 100.0 + index,
        "tpot_ms": 8.0,
        "e2e_ms": 500.0 + index,
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "output_tokens": 50,
        "instance": f"exp-{index % 2}",
        "routed_class": "warm",
        "trace_class": "warm",
        "policy_version": "1",
        "status": 200,
        "outcome": "ok",
        "error": "",
    }
    return Record(**values | changes)


@pytest.fixture
def ended(db: None, data_dir: Any) -> Callable[..., Experiment]:
    """A finished experiment of two arms, the second 20 ms faster, with its records in the data folder."""

    def make(n: int = 40, status: str = "done", **changes: Any) -> Experiment:
        arms = [arm_of("round_robin"), arm_of("adaptive_v1")]
        experiment = Experiment.objects.create(
            name="A vs B",
            trace="agentic-demo",
            pool="demo",
            pacing="timestamps",
            load_factor=1,
            duration_s=60,
            time_scale=10,
            seeds=[1],
            arms=arms,
            status=status,
            actor="otto",
            **changes,
        )
        for ordinal, arm in enumerate(arms):
            run = Run.objects.create(
                experiment=experiment,
                arm=arm["name"],
                seed=1,
                ordinal=ordinal,
                status=status,
                done=n,
                total=n,
                facts={"instances": ["exp-0", "exp-1"]},
            )
            write_records(run, [record(i, ttft_ms=200.0 + i - 20 * ordinal) for i in range(n)])
        return experiment

    return make


def write_records(run: Run, found: list[Record]) -> None:
    appender = Appender(run.records_path)
    for one in found:
        appender.append(one)
    appender.close()


def arm_of(strategy: str) -> dict[str, Any]:
    from router.policy.schema import document

    whole = document.default(strategy)
    return {
        "name": strategy,
        "policy": "",
        "version": 0,
        "strategy": strategy,
        "overrides": {},
        "document": whole,
        "sha256": document.sha256(whole),
    }
