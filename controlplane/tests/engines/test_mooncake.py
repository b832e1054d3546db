"""KV shared through a Mooncake store: in memory, and on a disk that fills up."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.tests.engines.fleet import CODE, LONG, Fleet, running

MOVED = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"}'
pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    with running(CODE / "examples/cpu-mooncake.yaml") as made:
        yield made


def taken(fleet: Fleet, prompt: str) -> int:
    """Return the tokens that tiny-1 finds of a prompt that only tiny-0 has computed."""
    fleet.only("tiny-0")
    said, _, _ = fleet.ask(prompt)
    fleet.only("tiny-1")
    again, usage, headers = fleet.ask(prompt)
    assert headers["x-weir-instance"] == "tiny-1"
    assert again == said
    return fleet.cached(usage)


def stored(fleet: Fleet) -> dict[str, float]:
    """Return the newest sample of the store's memory."""
    return fleet.one("master-0")["sample"]["kv_tiers"]["host"]


def test_one_instance_loads_what_another_has_computed_from_the_store(shared: Fleet) -> None:
    assert taken(shared, "shared " + LONG) > 1000
    sources = lambda: shared.one("tiny-1")["sample"]["cached_by_source"]  # noqa: E731
    shared.until(lambda: sum(value for tier, value in sources().items() if tier != "device") > 1000, "the hits", 60)
    in_store = lambda: stored(shared)["used_bytes"] > 0 and stored(shared)["hits_total"] > 0  # noqa: E731
    shared.until(in_store, "blocks in the store, and hits", 60)
    assert "KV tiers" in shared.page("/fleet/instances/master-0/")
    shared.everybody()


def test_blocks_that_cannot_be_read_in_time_are_computed_instead_of_failing_the_request(shared: Fleet) -> None:
    prompt, before = "late " + LONG, stored(shared)["used_bytes"]
    said, _, _ = shared.ask(prompt, url=shared.one("tiny-0")["url"])
    shared.until(lambda: stored(shared)["used_bytes"] > before, "its blocks in the store", 60)
    pid = shared.one("tiny-0")["pid"]
    os.killpg(pid, signal.SIGSTOP)
    goes_on = threading.Timer(8, os.killpg, (pid, signal.SIGCONT))  # after the 5 s for which blocks are leased
    goes_on.start()
    try:
        again, _, _ = shared.ask(prompt, url=shared.one("tiny-1")["url"])
    finally:
        goes_on.join()
    assert again == said
    assert "Recovered from KV load failure" in (shared.weir.folder / "logs/instances/tiny-1.log").read_text()
    shared.until_ready("tiny-0", "tiny-1")


def test_a_prompt_computed_by_one_and_decoded_by_the_other_gives_the_answer_of_a_single_engine(shared: Fleet) -> None:
    shared.offload()
    numbers = iter(range(1000))

    def is_moved_whole() -> bool:
        """vLLM answers the prefill before its last blocks are stored; a decoder that starts earlier computes them
        itself.
        """
        prompt = f"store {next(numbers)} " + LONG
        before = {name: shared.metric(name, MOVED) for name in ("tiny-0", "tiny-1")}
        said, usage, headers = shared.ask(prompt)
        assert headers["x-weir-flow"] == "offload_mooncake_store"
        decoder = headers["x-weir-instance"]
        moved = shared.metric(decoder, MOVED) - before[decoder]
        print(f"ENGINES offload over the store: {moved:.0f} of {usage['prompt_tokens']} tokens moved")
        other = next(name for name in ("tiny-0", "tiny-1") if name != decoder)
        alone, computed, _ = shared.ask(prompt, url=shared.one(other)["url"])
        assert shared.cached(computed) > 1500  # it computed the prompt
        assert said == alone
        return usage["prompt_tokens"] - 64 <= moved <= usage["prompt_tokens"]  # whole blocks

    shared.until(is_moved_whole, "a prompt that is moved whole", 120)
    shared.policy(**{"flow.heavy": "colocated"})


def test_serving_continues_without_the_master_and_the_store_comes_back_with_it(shared: Fleet) -> None:
    epoch, port = shared.one("master-0")["epoch"], shared.one("master-0")["ports"]["rpc"]
    shared.kill("master-0")
    assert len(shared.ask("no master " + LONG)[0]) == 16
    shared.note("kill -9 of the Mooncake master: replaced", shared.until(shared.is_replaced("master-0", epoch), "it"))
    assert shared.one("master-0")["ports"]["rpc"] == port
    assert len(shared.ask("a new master " + LONG)[0]) == 16
    number = iter(range(1000))
    shared.note(
        "kill -9 of the Mooncake master: the instances share again",
        shared.until(lambda: taken(shared, f"after {next(number)} " + LONG) > 1000, "a shared prompt", 240),
    )
    shared.everybody()


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Path]:
    """A disk of 24 MB, which as root is a separate file system."""
    if os.geteuid():
        pytest.skip("mounting a small disk takes root")
    folder = Path(f"/tmp/weir-small-disk-{os.getpid()}")
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "weir-test", str(folder)], capture_output=True)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def tiered(small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    text = (CODE / "examples/cpu-mooncake-ssd.yaml").read_text()
    document = tmp_path_factory.mktemp("fleet") / "cpu-mooncake-ssd.yaml"
    document.write_text(text.replace("disk_gib: 1\n", f"disk_gib: 1\n        disk: {small_disk}\n"))
    with running(document) as made:
        yield made


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_blocks_are_written_to_the_disk_and_the_pages_show_the_tier(tiered: Fleet, small_disk: Path) -> None:
    assert taken(tiered, "tiered " + LONG) > 1000
    tiered.note(
        "SSD tier: first blocks on the disk", tiered.until(lambda: on_disk(small_disk) > 100_000, "blocks", 120)
    )
    tiered.until(lambda: tiered.one("store-0")["sample"]["disk"][0] > 0, "the space on the disk", 60)
    disk = lambda name: tiered.one(name)["sample"]["kv_tiers"].get("disk", {})  # noqa: E731
    tiered.until(lambda: disk("store-0").get("written_bytes_total", 0) > 100_000, "what the store wrote", 60)
    tiered.until(lambda: disk("master-0").get("used_bytes", 0) > 100_000, "what the master counts", 60)
    page = tiered.page("/fleet/instances/store-0/")
    assert "Disk of the KV tier" in page
    assert "KV tiers" in page
    tiered.everybody()


def test_a_full_disk_is_reported_and_serving_continues(tiered: Fleet, small_disk: Path) -> None:
    filler = small_disk / "somebody-elses"
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(b"x" * (free - free % 4096))
    shown = tiered.until(lambda: "disk of its KV tier is full" in tiered.one("store-0")["reason"], "what is said", 60)
    tiered.note("full disk under the SSD tier: shown", shown)
    for number in range(8):
        assert len(tiered.ask(f"full {number} " + LONG)[0]) == 16
    assert tiered.one("store-0")["state"] == "ready"
    filler.unlink()
    tiered.note(
        "full disk under the SSD tier: space again, shown",
        tiered.until(lambda: "full" not in tiered.one("store-0")["reason"], "that there is space", 60),
    )
    assert len(tiered.ask("room " + LONG)[0]) == 16
