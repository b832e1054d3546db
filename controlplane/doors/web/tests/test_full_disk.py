"""Pages and the API can be read on a full disk. Needs root, as the disk is a small tmpfs."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.tests.ports import free_port

CODE = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(tmp_path)], capture_output=True)
    if made.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.fixture
def web(disk: Path) -> Iterator[int]:
    port = free_port()
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env = kept | {"WEIR_DATA_DIR": str(disk / "var")}
    subprocess.run(
        [sys.executable, "manage.py", "serve", "prepare"], cwd=CODE, env=env, check=True, capture_output=True
    )
    command = [sys.executable, "-m", "controlplane.doors.web", "--port", str(port)]
    process = subprocess.Popen(command, cwd=CODE, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while asked(port, "/healthz") == 0:
        assert time.monotonic() < end
        time.sleep(0.2)
    yield port
    process.terminate()
    process.wait(timeout=60)


def asked(port: int, path: str, token: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))


def test_read_only_requests_are_answered(disk: Path, web: int) -> None:
    token = (disk / "var" / "token").read_text().strip()
    with pytest.raises(OSError, match="No space left"):
        fill(disk / "file")
    paths = ("/healthz", "/login", *(f"/api/v1/{name}" for name in ("fleet", "policies", "audit", "pools", "traces")))
    assert {path: asked(web, path, "" if path == "/login" else token) for path in paths} == dict.fromkeys(paths, 200)
    assert asked(web, "/live") == 302
