"""A full disk under all of Weir: requests go on, what dies is started again, and no engine is left behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.request

import pytest

from controlplane.tests.real_up import new_folder, running
from controlplane.tests.test_up_whole import FLEET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PROCESSES = ("router-1", "web", "control", "experiments", "redis")


@contextlib.contextmanager
def small_disk(megabytes):
    """A folder on a disk of its own; skips the test where none can be mounted."""
    folder = new_folder()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def fill(folder):
    """Not a byte is left."""
    path = folder / "filling"
    with path.open("wb", buffering=0) as file:
        for size in (1_000_000, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path


def completion(weir):
    request = urllib.request.Request(f"http://127.0.0.1:{weir.router_port}/v1/completions")
    request.data = json.dumps({"model": "llama-3.1-8b", "prompt": "hello", "max_tokens": 4}).encode()
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except OSError:
        return 0


@pytest.fixture
def weir(tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    with small_disk(140) as folder, running("--fleet", str(fleet), folder=folder) as started:
        started.wait_for("2/2 instances of pool demo are ready")
        started.until(lambda: all(map(started.child, PROCESSES)), "all of them")
        yield started


def test_every_process_that_dies_on_a_full_disk_is_started_again_and_the_end_is_clean(weir):
    engines = sorted(weir.engines())
    filling = fill(weir.folder)
    for name in PROCESSES:
        before = weir.child(name)
        os.kill(before, signal.SIGKILL)
        weir.until(lambda name=name, before=before: weir.child(name) not in (before, None), f"another {name}")
    weir.until(lambda: completion(weir) == 200, "an answer of the router that was started on the full disk")
    weir.until(lambda: weir.get("/login") == 200, "a page of the web server that was started on the full disk")
    assert sorted(weir.engines()) == engines
    filling.unlink()
    os.kill(engines[0][0], signal.SIGKILL)
    weir.until(lambda: len(weir.engines()) == 2 and engines[0] not in weir.engines(), "another engine")
    fill(weir.folder)
    assert weir.stop() < 10.0
    assert weir.everything() == []


def test_no_engine_is_left_when_a_process_keeps_dying_on_a_full_disk_and_up_is_stopped(weir):
    fill(weir.folder)
    os.kill(weir.child("control"), signal.SIGKILL)
    assert weir.stop(signal.SIGTERM) < 10.0
    assert weir.everything() == []
