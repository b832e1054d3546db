"""A full disk under all of Weir: requests continue, processes that die are restarted, and no engine is left behind."""

import os
import signal

import pytest

from controlplane.tests.faults import Impossible, completion, fill, small_disk
from controlplane.tests.real_up import FLEET, running

pytestmark = pytest.mark.slow

PROCESSES = ("router-1", "web", "control", "experiments", "redis")


@pytest.fixture
def disk():
    try:
        with small_disk() as folder:
            yield folder
    except Impossible as why:
        pytest.skip(str(why))


@pytest.fixture
def weir(disk, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    with running("--fleet", str(fleet), folder=disk) as started:
        started.wait_for("2/2 instances of pool demo are ready")
        started.until(lambda: all(map(started.child, PROCESSES)), "all of them")
        yield started


def test_every_process_that_dies_on_a_full_disk_is_restarted_and_everything_ends_cleanly(weir):
    engines = sorted(weir.engines())
    filling = fill(weir.folder)
    for name in PROCESSES:
        before = weir.until(lambda name=name: weir.child(name), name)  # processes that need a killed one may restart
        os.kill(before, signal.SIGKILL)
        weir.until(lambda name=name, before=before: weir.child(name) not in (before, None), f"another {name}")
    weir.until(lambda: completion(weir) == "200", "an answer of the router that was started on the full disk")
    weir.until(lambda: weir.get("/login") == 200, "a page of the web server that was started on the full disk")
    assert sorted(weir.engines()) == engines
    filling.unlink()
    os.kill(engines[0][0], signal.SIGKILL)
    weir.until(lambda: len(weir.engines()) == 2 and engines[0] not in weir.engines(), "another engine")
    fill(weir.folder)
    assert weir.stop() < 30.0
    assert weir.left() == []


def test_no_engine_is_left_if_a_process_keeps_dying_on_a_full_disk_and_up_is_stopped(weir):
    fill(weir.folder)
    os.kill(weir.child("control"), signal.SIGKILL)
    assert weir.stop(signal.SIGTERM) < 10.0
    assert weir.left() == []
