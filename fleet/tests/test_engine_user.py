"""Engines that run under their own OS user."""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.kinds import KINDS
from fleet.kinds.wire import KvWire
from fleet.models import State
from fleet.node import engine_user, logs, prerequisites, process
from fleet.node.engine_user import EngineUser, UnusableUser
from fleet.node.prepare import PreparedStart, folder_of, write_files
from fleet.tests.world import FAKE, World

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
NOBODY = "nobody"


@pytest.fixture
def user(settings: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineUser]:
    """Return the user nobody, with a data folder that it can reach."""
    place = Path(subprocess.check_output(["mktemp", "-d", "/tmp/weir-user-XXXXXX"], text=True).strip())
    place.chmod(0o755)
    (place / "var").mkdir(mode=0o700)
    settings.DATA_DIR = place / "var"
    settings.ENGINE_USER = NOBODY
    found = engine_user.current()
    assert found is not None
    yield found
    subprocess.run(["rm", "-rf", str(place)], check=True)


def prepared(**more: Any) -> PreparedStart:
    return PreparedStart(
        **{"argv": [], "environment": {}, "files": {}, "url": "", "wire": KvWire(), "requires": (), **more}
    )


@as_root
def test_a_process_of_the_engine_user_has_its_groups_and_no_capability(user: EngineUser) -> None:
    said = subprocess.check_output(
        user.argv(["sh", "-c", "id -u; id -g; grep -E 'Cap(Eff|Prm|Amb)|NoNew' /proc/self/status"])
    )
    uid, gid, *status = said.decode().split("\n")
    assert (int(uid), int(gid)) == (user.uid, user.gid)
    none = "0" * 16
    assert "".join(status).replace("\t", "") == f"CapPrm:{none}CapEff:{none}CapAmb:{none}NoNewPrivs:1"


@as_root
def test_a_worker_with_ambient_capabilities_can_switch_users_without_root() -> None:
    """The engine inherits none of the capabilities."""
    names = [f"+{name.lower()}" for name in engine_user.NEEDED]
    as_worker = ["setpriv", "--reuid", "1", "--regid", "1", "--clear-groups", f"--inh-caps=-all,{','.join(names)}"]
    inner = EngineUser(NOBODY, 65534, 65534, "/").argv(["sh", "-c", "id -u; grep -E 'Cap(Eff|Amb)' /proc/self/status"])
    said = subprocess.run(
        [*as_worker, f"--ambient-caps=-all,{','.join(names)}", "--", *inner], capture_output=True, text=True
    )
    assert said.stdout.replace("\t", "") == "65534\nCapEff:0000000000000000\nCapAmb:0000000000000000\n", said.stderr


@as_root
def test_an_engine_runs_as_the_user_and_cannot_read_the_data_folder(
    world: World, user: EngineUser, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    secret = settings.DATA_DIR / "token"
    secret.write_text("s3cret")
    secret.chmod(0o644)  # only the folder's own mode protects it
    script = f"id -un; echo $HOME; cat {secret}; touch own && echo wrote; exec sleep 60"
    kind = {**{name: getattr(FAKE, name) for name in FAKE.__dataclass_fields__}}
    command = lambda spec, launch: ["sh", "-c", f"cd {launch.folder}; {script}"]  # noqa: E731
    monkeypatch.setitem(KINDS, "fake", type(FAKE)(**{**kind, "command": command}))
    world.apply(1)
    lines: list[str] = []

    def has_written() -> bool:
        lines[:] = logs.tail(logs.path_of("p-0"), 20)
        return "wrote" in lines  # alone on a line, since the first line repeats the command that contains it

    world.until(has_written)
    assert lines[1:3] == [NOBODY, user.home]
    assert "Permission denied" in lines[3]
    assert (folder_of("p-0") / "own").stat().st_uid == user.uid
    ((pid, started),) = world.processes()
    assert world.one().pid == pid
    assert process.is_alive(pid, started)
    process.stop(pid, started, grace_s=1)
    assert world.processes() == []


@as_root
def test_files_are_written_as_the_user_and_follow_no_link_with_weirs_rights(user: EngineUser, settings: Any) -> None:
    folder = folder_of("p-0")
    assert folder.parent == settings.DATA_DIR.with_name("var-engines")
    start = prepared(files={f"{folder}/a.json": "{}"}, volume=f"{folder}/kv", metrics_folder=f"{folder}/metrics")
    write_files(start, folder, user)
    assert (folder / "metrics").stat().st_uid == user.uid
    (folder / "metrics" / "counter_7.db").touch()
    stat = (folder / "a.json").stat()
    assert (stat.st_uid, stat.st_mode & 0o777) == (user.uid, 0o600)
    assert (folder / "kv").stat().st_uid == user.uid
    assert (folder.parent.stat().st_uid, folder.parent.stat().st_mode & 0o777) == (0, 0o711)
    target = settings.DATA_DIR / "secret_key"
    target.write_text("kept")
    (folder / "a.json").unlink()
    (folder / "a.json").symlink_to(target)
    write_files(start, folder, user)
    assert target.read_text() == "kept"
    assert (folder / "a.json").read_text() == "{}"
    assert not list((folder / "metrics").iterdir())


@as_root
def test_a_volume_that_the_user_cannot_create_is_refused_with_advice(user: EngineUser) -> None:
    with pytest.raises(UnusableUser, match=r"cannot make the folder /root/kv; make it and give it to that user"):
        write_files(prepared(volume="/root/kv"), folder_of("p-0"), user)
    assert not Path("/root/kv").exists()
    with pytest.raises(UnusableUser, match=r"cannot empty the folder /root/metrics; remove it"):
        write_files(prepared(metrics_folder="/root/metrics"), folder_of("p-0"), user)


@as_root
def test_a_file_that_cannot_be_written_is_refused(user: EngineUser) -> None:
    with pytest.raises(UnusableUser, match="cannot write /root/x"):
        write_files(prepared(files={"/root/x": ""}), folder_of("p-0"), user)


@as_root
def test_a_data_folder_that_the_engine_user_can_enter_is_refused(user: EngineUser, settings: Any) -> None:
    settings.DATA_DIR.chmod(0o755)
    with pytest.raises(UnusableUser, match=r"WEIR_ENGINE_USER=nobody: can enter the data folder .*\(mode 0700\)"):
        write_files(prepared(), folder_of("p-0"), user)


@as_root
def test_a_folder_that_the_user_cannot_reach_is_refused(user: EngineUser, settings: Any) -> None:
    settings.DATA_DIR.parent.chmod(0o700)
    with pytest.raises(UnusableUser, match=r"cannot enter .*var-engines/p-0; set WEIR_DATA_DIR to a folder whose"):
        write_files(prepared(), folder_of("p-0"), user)


@as_root
def test_the_check_of_a_python_runs_as_the_user(user: EngineUser, tmp_path: Path) -> None:
    script = Path("/tmp") / f"weir-python-{os.getpid()}"
    script.write_text('#!/bin/sh\nid -un >&2; echo "{\\"modules\\": {\\"$(id -un)\\": true}, \\"gpus\\": {}}"\n')
    script.chmod(0o755)
    try:
        assert prerequisites.ask(str(script), []).modules == {NOBODY: True}
    finally:
        script.unlink()


def test_the_check_of_a_python_gets_none_of_weirs_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:s3cret@h/weir")
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "{\\"modules\\": {\\"$DATABASE_URL\\": true}, \\"gpus\\": {}}"\n')
    script.chmod(0o755)
    assert prerequisites.ask(str(script), []).modules == {"": True}


def test_without_the_setting_nothing_changes(settings: Any) -> None:
    assert engine_user.current() is None
    assert folder_of("p-0").parent == settings.DATA_DIR / "instances"


@pytest.mark.parametrize("name", ["root", pwd.getpwuid(os.geteuid()).pw_name, "no-such-user"])
def test_root_or_an_unknown_user_is_refused(settings: Any, name: str) -> None:
    settings.ENGINE_USER = name
    with pytest.raises(
        UnusableUser, match=f"WEIR_ENGINE_USER={name}: (must be neither root|this host has no such user)"
    ):
        engine_user.current()


def test_missing_rights_or_programs_are_refused_by_name(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ENGINE_USER = NOBODY
    monkeypatch.setattr(engine_user, "_capabilities", lambda _: 1 << 6 | 1 << 7)
    with pytest.raises(
        UnusableUser, match="root, or with the ambient capabilities CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS"
    ):
        engine_user.current()
    monkeypatch.setattr(engine_user, "_capabilities", lambda _: ~0)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnusableUser, match="the program setpriv"):
        engine_user.current()


def test_an_instance_shows_why_its_start_was_refused(world: World, settings: Any) -> None:
    world.apply(1)
    settings.ENGINE_USER = "no-such-user"
    world.until(world.is_in(State.FAILED))
    assert "could not be launched: WEIR_ENGINE_USER=no-such-user: this host has no such user" in world.one().reason
    assert "no such user" in prerequisites.ask(sys.executable, []).error
