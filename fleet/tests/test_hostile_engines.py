"""A hostile engine's pages: its node ignores them, counts them, and continues."""

import os
import signal
from pathlib import Path

import pytest

from fleet.calibration import engine_facts, streamed_request
from fleet.models import Instance, State
from fleet.node import logs, process
from fleet.observe import engine_pages, scrape
from fleet.redis import connect
from fleet.tests.world import World
from router.contract.metrics import metrics_page
from router.contract.net import http_client, probe
from router.contract.redis import codec, redis_keys
from router.contract.redis.sample import InstanceSample
from router.kv_events import batch, feed, inbox, sequence, sources
from router.upstream.answer import field_scan, stream_tail


def sample(world: World) -> InstanceSample:
    """Wait for the next step that reads the page, which a busy machine may delay."""
    connect().delete(redis_keys.instance_key("p-0"))
    world.until(lambda: bool(connect().exists(redis_keys.instance_key("p-0"))))
    raw = connect().get(redis_keys.instance_key("p-0"))
    return codec.read(InstanceSample, raw)


@pytest.fixture
def engine(world: World) -> World:
    world.apply(1)
    world.until_ready(1)
    return world


def test_impossible_figures_are_unknown_and_the_other_figures_are_read(engine: World) -> None:
    engine.tell(running="-5", waiting="1e300")
    first, second = sample(engine), sample(engine)
    assert (first.running, first.waiting, first.kv_usage) == (None, None, 0.25)
    out = "out of range (0 to 2^53)"
    names = {f"vllm:num_requests_running: {out}", f"vllm:num_requests_waiting: {out}"}
    assert first.refused == dict.fromkeys(names, 1)
    assert second.refused == dict.fromkeys(names, 2)
    assert engine.one().state == State.READY


def test_a_page_that_is_too_large_updates_the_time_but_no_figures(engine: World) -> None:
    good = sample(engine)
    engine.tell(more="x" * 1000 + "\n", times=metrics_page.LARGEST // 500)
    bad = sample(engine)
    assert (bad.at, bad.kv_usage) == (good.at, None)
    ((reason, count),) = bad.refused.items()
    assert (reason.endswith("/metrics: larger than 4194304 bytes"), count) == (True, 1)
    assert engine.one().state == State.READY
    engine.tell(more="")
    later = sample(engine)
    assert later.at > good.at
    assert later.refused == bad.refused


def test_a_sample_records_an_engines_models_and_their_maximum_lengths(engine: World) -> None:
    assert sample(engine).models == {"m": 32_768}


def test_a_list_of_a_million_models_is_not_read(world: World) -> None:
    world.apply(1, models=100_000)
    world.until(world.is_in(State.LOADING))
    too_large = "/v1/models: larger than 1048576 bytes"
    world.until(lambda: any(reason.endswith(too_large) for reason in sample(world).refused))
    assert world.one().state == State.LOADING
    world.tell(models=10)
    world.until_ready(1)


def test_reasons_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MOST_REASONS", 2)
    known = scrape.InstanceMemory(epoch=1, answered_at=0.0)
    for number in range(5):
        scrape.note_refused(known, {f"reason {number}": 2})
    scrape.note_refused(known, {"reason 0": 1})
    assert known.refused == {"reason 0": 3, "reason 1": 2, "other": 6}


def test_the_log_of_a_running_engine_is_kept_short(engine: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "TRIM_EVERY_S", 0.0)
    path = logs.path_of("p-0")
    with path.open("ab") as log:
        log.write(b"x" * (logs.ROTATE_BYTES + 1))
    engine.tick()
    assert path.stat().st_size < 1000
    assert path.with_suffix(".log.1").stat().st_size == logs.ROTATE_BYTES


def test_output_of_an_engine_cannot_control_a_terminal(engine: World) -> None:
    with logs.path_of("p-0").open("a") as log:
        log.write("\x1b[2J\x1b[31mRuntimeError: out of \x07memory\n")
    row = engine.one()
    os.kill(row.pid, signal.SIGKILL)
    engine.until(lambda: engine.one().failures > 0)
    assert not process.is_alive(row.pid, row.pid_started)
    assert "\x1b" not in Instance.objects.get().reason


def test_the_documented_limits_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    table = page[page.index("## What an engine may send") :]
    for bound in (
        f"{http_client.MAX_HEAD:,} bytes, {http_client.MAX_HEADERS} headers",
        f"in an event of up to {stream_tail.LARGEST_EVENT >> 10} KiB whole, "
        f"of a larger one its own field of up to {field_scan.LONGEST >> 10} KiB",
        f"metrics page | {metrics_page.LARGEST >> 20} MiB, {scrape.PROBE_S:g} s in all",
        f"lines of {metrics_page.LONGEST_LINE >> 10} KiB, {metrics_page.MOST_SERIES:,} series",
        f"`/v1/models` | {engine_pages.MODELS_LARGEST >> 20} MiB",
        f"health page | {probe.LARGEST >> 10} KiB",
        f"`/kv_event_sources` | {sources.LONGEST >> 20} MiB, {sources.TIMEOUT_S:g} s in all",
        f"frames of {inbox.LARGEST >> 20} MiB, arrays of {batch.LONGEST_ARRAY:,}, maps of {batch.LARGEST_MAP},",
        f"after {feed.MOST_REFUSED} refusals the engine is left alone for {feed.LONGEST_RETRY_S:g} s",
        f"{inbox.WAITING_BYTES >> 20} MiB waiting, {sequence.KEPT_BYTES >> 20} MiB held back",
        f"{feed.MOST_BLOCKS:,} per engine",
        f"{logs.ROTATE_BYTES >> 20} MiB and the",
        f"{logs.LONGEST_LINE:,} characters",
        f"in {engine_facts.ANSWER_S:g} s; events of {streamed_request.LONGEST_EVENT >> 20} MiB",
    ):
        assert bound in table
