"""Everything, with real processes. Two engines instead of eight, as the machine that runs the tests is small."""

import os
import re
import signal

import pytest

from controlplane.tests.real_up import FLEET, running, up

pytestmark = pytest.mark.slow
STOP_S = 20.0  # its own limits are 10 s, but they take longer on a busy machine


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return str(path)


@pytest.fixture
def weir(fleet):
    with running("--fleet", fleet) as running_weir:
        running_weir.wait_for("Weir is up")
        yield running_weir


def has_fleet(weir):
    weir.wait_for("2/2 instances of pool demo are ready")


def test_weir_serves_and_ends_within_ten_seconds_of_a_signal(weir):
    assert weir.get("/login") == 200
    assert weir.get("/static/css/weir.css") == 200
    assert weir.get("/healthz", weir.router_port) in (200, 503)
    has_fleet(weir)
    assert weir.stop(signal.SIGINT) < STOP_S
    assert weir.process.returncode == 0
    assert weir.left() == []


def test_sigterm_ends_everything_even_if_the_shell_that_started_it_ignores_sigint(fleet):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits this, as behind `&` in a script
    try:
        with running("--fleet", fleet) as weir:
            signal.signal(signal.SIGINT, before)
            weir.wait_for("Weir is up")
            assert weir.stop(signal.SIGTERM) < STOP_S
            assert weir.process.returncode == 0
            assert weir.left() == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_when_killed_it_takes_its_processes_along_and_the_next_start_finds_the_engines(weir):
    has_fleet(weir)
    engines = sorted(weir.engines())
    children = weir.children()
    weir.process.kill()
    weir.process.wait()
    assert len(engines) == 2
    assert sorted(weir.engines()) == engines
    weir.start()
    has_fleet(weir)
    assert sorted(weir.engines()) == engines
    assert not set(children.values()) & set(weir.children().values())
    assert weir.stop() < STOP_S
    assert weir.left() == []


def test_each_killed_process_is_restarted(weir):
    has_fleet(weir)
    weir.until(lambda: "traffic" in weir.children(), "traffic")
    # A process that dies before it was ever ready ends the start.
    weir.until(lambda: re.search("^experiments +ready", weir.output.read_text(), re.M), "the last worker")
    for name, pid in weir.children().items():
        os.kill(pid, signal.SIGKILL)
        weir.until(lambda name=name, pid=pid: weir.children().get(name, pid) != pid, f"another {name}")
    weir.until(lambda: weir.get("/login") == 200, "the page")
    weir.until(lambda: weir.get("/healthz", weir.router_port) == 200, "the router with its fleet")
    engines = weir.engines()
    assert len(engines) == 2
    # The schedule, the workers and the new Redis work together again: an engine that dies is replaced.
    os.kill(engines[0][0], signal.SIGKILL)
    weir.until(lambda: len(weir.engines()) == 2 and engines[0] not in weir.engines(), "another engine")
    assert weir.stop() < STOP_S
    assert weir.left() == []


def test_a_second_start_on_the_same_folder_does_no_harm_and_a_second_ctrl_c_ends_at_once(weir):
    has_fleet(weir)
    second = up(weir.folder)
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        f"weir: Weir is already running on {weir.folder} (process {weir.process.pid});"
        " stop it, or set another WEIR_DATA_DIR"
    ]
    assert weir.get("/login") == 200
    weir.process.send_signal(signal.SIGINT)
    weir.wait_for("stopping")
    assert weir.stop() < 8.0
    assert weir.left() == []
