"""A fleet on several hosts: one is cut off and replaced, reconnected, slowed down; nothing runs or serves twice."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.pages.fleet_pages.tests.hosts import Hosts, why_not
from fleet.control.nodes import SILENT_S

FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: test}
spec:
  pools:
    - {name: demo, model: m, kind: sim, replicas: 2, placement: {spread: true}, engine: {time_scale: 10}}
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    missing = why_not()
    if missing:
        pytest.skip(missing)
    # In /tmp, as the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="weir-hosts-", dir="/tmp") as folder:
        prepared = Hosts(Path(folder), ("gpu-1", "gpu-2"))
        try:
            yield prepared
        finally:
            prepared.close()


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_node_that_is_cut_off_is_replaced_and_nothing_runs_twice_when_it_is_back(hosts: Hosts) -> None:
    (hosts.folder / "fleet.yaml").write_text(FLEET)
    hosts.start_control()
    hosts.start_node("gpu-1")
    hosts.start_node("gpu-2")
    hosts.until(
        lambda: hosts.redis.exists("weir:worker:gpu-1@node") + hosts.redis.exists("weir:worker:gpu-2@node") == 2
    )
    hosts.manage("fleet_apply", str(hosts.folder / "fleet.yaml"), "--reason", "test")
    print("spread over both nodes after", hosts.until(hosts.routable("gpu-1", "gpu-2")))
    assert {entry["url"].split(":")[1] for entry in hosts.entries().values()} == {"//198.18.77.2", "//198.18.77.3"}
    hosts.start_client()
    hosts.until(lambda: {answer[3] for answer in hosts.answers()} == {"demo-0", "demo-1"})
    lost = next(name for name, node in hosts.rows("name, node") if node == "gpu-1")
    (old,) = hosts.engines("gpu-1")

    hosts.cut_off("gpu-1")
    cut_at = time.time()
    print("out of routing after", hosts.until(hosts.routable("gpu-2")))
    served = hosts.served("gpu-1", lost)
    print("replaced on the other node after", hosts.until(hosts.routable("gpu-2", "gpu-2")))
    assert hosts.engines("gpu-1") == [old], "the old process lives on; nobody can tell it anything"
    assert hosts.entries()[lost]["epoch"] == old[1] + 1
    url = f"http://198.18.77.2:{_port(hosts, old[2])}"
    assert hosts.served_at("gpu-1", url) == served, "what is cut off serves nobody"

    hosts.bring_back("gpu-1")
    print("its old process ended after", hosts.until(lambda: hosts.engines("gpu-1") == []))
    hosts.until(lambda: len(hosts.engines("gpu-2")) == 2)
    back_at = time.time()

    before = hosts.rows("name, epoch, state")
    hosts.slow_down("gpu-2", delay_ms=150)
    hosts.until(lambda: hosts.round_trip_s("gpu-2") >= 0.3)
    slowed_at = time.time()
    hosts.until(lambda: len(hosts.answers(slowed_at)) > 20)
    assert hosts.routable("gpu-2", "gpu-2")(), "a slow wire takes nothing away"
    hosts.speed_up("gpu-2")
    with hosts.suspended_worker("gpu-2"):
        hosts.until(lambda: hosts.silent_s("gpu-2") > SILENT_S + 4)
        assert hosts.routable("gpu-2", "gpu-2")(), "while its engines answer, a silent worker takes nothing away"
    hosts.until(lambda: hosts.silent_s("gpu-2") < SILENT_S)
    assert hosts.rows("name, epoch, state") == before, "slow is not dead"

    after = hosts.answers(back_at)
    hosts.until(lambda: len(hosts.answers(back_at)) > len(after) + 10)
    assert {status for _, _, status, _ in hosts.answers(back_at)} == {200}
    # From the cut until the routers noticed it, requests for that node were retried on the other node.
    print(f"{len(hosts.answers())} requests, the longest after the cut took", hosts.longest_s(cut_at))
    assert [answer for answer in hosts.answers(cut_at) if answer[2] != 200] == []
    assert max(Counter(number for _, number, _, _ in hosts.answers()).values()) == 1
    twice = [start for start, count in Counter(hosts.starts()).items() if count > 1]
    assert twice == []
    assert len(hosts.starts()) == 3


def _port(hosts: Hosts, pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words[words.index("--port") + 1]
