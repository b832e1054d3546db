import shutil
import socket
from collections import namedtuple

import pytest

from controlplane.doors.up import CannotStart, preflight
from controlplane.doors.up.plan import Options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(routers=0), "--routers 0: allowed are 1 to 16"),
        (Options(routers=17), "allowed are 1 to 16"),
        (Options(web_port=0), "port 0: allowed are 1 to 65535"),
        (Options(router_port=65535, routers=2), "port 65536"),
        (Options(web_port=8081, routers=2), "port 8081 is set for both the web server and a router"),
    ],
)
def test_impossible_options_are_refused_with_what_is_allowed(options, says):
    with pytest.raises(CannotStart, match=says):
        preflight.check_options(options)


def test_a_missing_fleet_file_is_named(tmp_path):
    with pytest.raises(CannotStart, match=r"--fleet .*nowhere.yaml: no such file"):
        preflight.check_options(Options(fleet=tmp_path / "nowhere.yaml"))


def test_a_port_in_use_is_named_with_the_flag_that_changes_it():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        with pytest.raises(
            CannotStart, match=f"port {taken} on 127.0.0.1 is in use; choose another with --router-port"
        ):
            preflight.check_ports(Options(router_port=taken, web_port=1025 if taken != 1025 else 1026))


def test_a_free_port_stays_free():
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        free = finder.getsockname()[1]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        web = other.getsockname()[1]
    preflight.check_ports(Options(router_port=free, web_port=web))
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", free))


def test_a_data_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(CannotStart, match=r"data folder .*data: .*; make room there or name another"):
        preflight.prepare_folder(tmp_path / "data")


def test_a_full_disk_is_refused_before_anything_starts(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 5_000_000))
    with pytest.raises(CannotStart, match="less than 100 MB free; make room there"):
        preflight.prepare_folder(tmp_path)


def test_only_its_owner_can_open_the_run_folder(tmp_path):
    preflight.prepare_folder(tmp_path)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_data_folder_is_claimed_once_and_free_again_afterwards(tmp_path):
    preflight.prepare_folder(tmp_path)
    with preflight.claim(tmp_path), pytest.raises(CannotStart, match=r"already running on .* \(process \d+\)"):
        preflight.claim(tmp_path)
    preflight.claim(tmp_path).close()
