"""A start that cannot work ends with exactly one line on stderr and exit status 1, and leaves nothing running."""

import shutil
import socket

import pytest

from controlplane.tests.real_up import RealUp, new_folder, up
from router.tests.ports import free_port, free_ports


@pytest.fixture
def folder():
    made = new_folder()
    yield made
    assert RealUp(made).everything() == []
    shutil.rmtree(made, ignore_errors=True)


def refusal(done):
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def ports():
    web, router = free_ports(2)
    return "--web-port", str(web), "--router-port", str(router)


def test_a_port_in_use_is_refused(folder):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = str(holder.getsockname()[1])
        assert f"port {taken} on 127.0.0.1 is in use" in refusal(up(folder, *ports()[:2], "--router-port", taken))


def test_a_missing_fleet_file_is_refused(folder):
    assert "nowhere.yaml: no such file" in refusal(up(folder, *ports(), "--fleet", "nowhere.yaml"))


def test_an_invalid_fleet_file_is_refused(folder):
    wrong = folder / "fleet.yaml"
    wrong.write_text(
        "apiVersion: weir/v1\nkind: Fleet\nmetadata: {name: x}\nspec: {pools: [{name: UPPER, kind: sim}]}\n"
    )
    said = refusal(up(folder, *ports(), "--fleet", str(wrong)))
    assert "UPPER" in said
    assert "lower-case" in said


def test_a_data_folder_that_cannot_be_created_is_refused(folder):
    (folder / "file").touch()
    assert "name a folder that can be written" in refusal(up(folder / "file" / "data", *ports()))


def test_an_invalid_environment_variable_is_refused(folder):
    said = refusal(up(folder, *ports(), WEIR_SECURE_COOKIES="perhaps"))
    assert said == "weir: WEIR_SECURE_COOKIES=perhaps: allowed are 1, true, yes, on, 0, false, no, off"


@pytest.mark.slow
def test_a_redis_that_does_not_answer_is_refused(folder):
    port = free_port()
    assert "no answer from Redis" in refusal(up(folder, *ports(), REDIS_URL=f"redis://127.0.0.1:{port}/0"))


def test_an_invalid_redis_url_is_refused(folder):
    assert "REDIS_URL" in refusal(up(folder, *ports(), REDIS_URL="nonsense"))


def test_a_data_folder_too_deep_for_a_unix_socket_is_refused(folder):
    assert "choose a shorter WEIR_DATA_DIR" in refusal(up(folder / ("d" * 110), *ports()))


@pytest.mark.slow
def test_an_invalid_database_url_is_refused(folder):
    (folder / "weir.sqlite3").write_text("not a database, but long enough to be looked at " * 100)
    assert "file is not a database" in refusal(up(folder, *ports()))
