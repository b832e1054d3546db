"""The parts of a start, and which of them are shown in advance."""

from pathlib import Path
from typing import Any

import pytest

from fleet.kinds import KINDS
from fleet.kinds.transfer import MODES
from fleet.models import Instance, Pool, Port, State
from fleet.node.prepare import (
    DependencyNotReady,
    PairNotStarted,
    folder_of,
    peers_of,
    preview,
    shell_line,
    volume_of,
    write_files,
)
from fleet.spec.fleet_spec import PoolSpec

STORE = {"kv": "mooncake-store", "master": "m"}


def pool(kind: str = "vllm", **engine: Any) -> PoolSpec:
    return PoolSpec("p", "tiny", kind, engine=engine)


def row(kind: str, **engine: Any) -> Instance:
    return Instance(name="p-0", ordinal=0, config={"model": "m", "kind": kind, "engine": engine})


def master(state: State = State.READY) -> None:
    prepared = Pool.objects.create(name="m", model="x", kind="mooncake-master")
    instance = Instance.objects.create(
        pool=prepared,
        name="m-0",
        ordinal=0,
        state=state,
        url="http://10.0.0.9:18100",
        config={"kind": "mooncake-master"},
    )
    Port.objects.create(instance=instance, node="local", use="rpc", number=18555)


@pytest.mark.parametrize("kv", MODES)
def test_the_disk_used_by_each_kv_tier_is_known_at_any_time(kv: str) -> None:
    disk = volume_of(row("vllm", kv=kv, master="m", disk="/ssd"))
    assert disk == ("/ssd" if kv in {"offload-ssd", "lmcache-disk", "lmcache-gds", "example-disk"} else "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_uses_a_disk_only_if_an_option_says_so(kind: str) -> None:
    assert volume_of(row(kind)) == ""


def test_an_instance_of_an_unknown_kind_uses_no_disk() -> None:
    assert volume_of(Instance(name="p-0", ordinal=0, config={"kind": "gone"})) == ""


@pytest.mark.django_db
def test_the_address_of_a_needed_pool_is_that_of_its_ready_instance() -> None:
    master()
    assert peers_of(started("vllm", STORE)) == {"m": "10.0.0.9:18555"}


@pytest.mark.django_db
def test_nothing_starts_without_a_ready_instance_of_the_needed_pool() -> None:
    master(State.LOADING)
    with pytest.raises(DependencyNotReady, match="pool m, which it needs, has no ready instance"):
        peers_of(started("vllm", STORE))


def started(kind: str, engine: dict[str, Any], ordinal: int = 0) -> Instance:
    config = {"model": "x", "kind": kind, "engine": engine}
    return Instance(pool=Pool(name="p", kind=kind), name=f"p-{ordinal}", ordinal=ordinal, config=config)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "use", "engine"),
    [
        ("sim", "http", {"kv": "neuron", "pairs": "1P1D", "prefill_instances": 2}),
        ("neuron", "side", {"prefill_instances": 2}),
    ],
)
def test_a_decoder_is_started_with_the_address_of_its_prefill_instance(
    kind: str, use: str, engine: dict[str, Any]
) -> None:
    assert peers_of(started(kind, engine, 1)) == {}
    with pytest.raises(PairNotStarted, match="waits for p-1, the other instance of its pair, to be started"):
        peers_of(started(kind, engine, 3))
    owner = Pool.objects.create(name="p", kind=kind, model="x")
    row = Instance.objects.create(pool=owner, name="p-1", ordinal=1, url="http://10.0.0.7:8001")
    Port.objects.create(instance=row, node="here", use=use, number=18_777)
    assert peers_of(started(kind, engine, 3)) == {"p-1": "10.0.0.7:18777"}


@pytest.mark.django_db
def test_values_known_only_at_the_start_are_named_in_the_preview() -> None:
    prepared = preview(pool(**STORE))
    assert "--port '<http port>'" in shell_line(prepared)
    assert "<address of m>" in next(iter(prepared.files.values()))
    master()
    assert "10.0.0.9:18555" in next(iter(preview(pool(**STORE)).files.values()))


@pytest.mark.django_db
def test_secrets_are_hidden_in_the_preview() -> None:
    prepared = preview(pool(environment={"HF_TOKEN": "hf-1", "aws_secret_id": "x", "PLAIN": "y", "API_KEY": ""}))
    assert "HF_TOKEN='(hidden)'" in shell_line(prepared)
    assert "PLAIN='(hidden)'" in shell_line(prepared)
    assert prepared.environment["API_KEY"] == ""


@pytest.mark.django_db
def test_files_are_readable_only_by_us_and_the_folder_of_the_tier_is_created(tmp_path: Path, settings: Any) -> None:
    settings.DATA_DIR = tmp_path
    prepared = preview(pool("mooncake-client", master="m", ssd=True))
    write_files(prepared, folder_of("p-0"))
    assert (tmp_path / "instances/p-0/kv").is_dir()
    lmcache = preview(pool(kv="lmcache-dram"))
    for _ in range(2):
        write_files(lmcache, folder_of("p-0"))
        assert not list((tmp_path / "instances/p-0/metrics").iterdir())
        (tmp_path / "instances/p-0/metrics/counter_7.db").touch()
    write_files(preview(pool(**STORE)), folder_of("p-0"))
    assert (tmp_path / "instances/p-0/mooncake.json").stat().st_mode & 0o777 == 0o600
