"""A real vLLM that was started by hand as in docs/engines.md, behind the router by its URL."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.tests.engines.fleet import CODE, Fleet, running
from controlplane.tests.engines.talks import Talk, hold, receipts
from router.tests.ports import free_ports

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
BLOCK = 32  # tokens
HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an engine that Weir did not start."""
    http, events, replay = map(str, free_ports(3))
    found = re.search(r"```sh\n([^`]*--kv-events-config[^`]*)```", (CODE / "docs/engines.md").read_text())
    assert found
    command = found[1].replace("8100", http).replace("5557", events).replace("5558", replay)
    with (tmp_path_factory.mktemp("engine") / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            ["bash", "-c", command], cwd=CODE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{http}"
    finally:
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()


@pytest.fixture(scope="module")
def fleet(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    text = (CODE / "examples/cpu-adopted.yaml").read_text().replace("http://127.0.0.1:8100", url)
    document: Path = tmp_path_factory.mktemp("fleet") / "cpu-adopted.yaml"
    document.write_text(text.replace("./.engines", str(CODE / ".engines")))
    with running(document) as made:
        yield made


def test_an_adopted_engine_is_recognised_by_an_inspection_before_the_adoption(fleet: Fleet, url: str) -> None:
    found, _ = fleet.rest("POST", "/fleet/discover", {"engine": {"urls": [url]}})
    told = [(one["server"], one["models"], one["kv_events"]) for one in found["engines"]]
    assert told == [("vLLM", ["tiny"], True)]


def test_the_cached_tokens_of_an_adopted_engine_are_predicted(fleet: Fleet) -> None:
    exact = lambda: ">exact<" in fleet.page("/fleet/instances/tiny-0/")  # noqa: E731
    fleet.note("adopted: its index is believed", fleet.until(exact, "the index to be believed", 60))
    before = fleet.metric("tiny-0", HITS)
    answered = receipts(fleet, hold(fleet, [Talk(number) for number in range(8)], turns=4, words=100))
    assert {(one["instance"], one["index"]) for one in answered} == {("tiny-0", "exact")}
    counted = fleet.metric("tiny-0", HITS) - before
    assert counted == sum(one["cached_tokens"] for one in answered) > 0
    errors = [abs(one["predicted_cached"] - one["cached_tokens"]) for one in answered]
    print(f"ENGINES adopted: predicted and actual cached tokens of {len(errors)} requests differ by {max(errors)}")
    assert max(errors) <= BLOCK
