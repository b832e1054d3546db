"""Runs engines as a separate OS user (WEIR_ENGINE_USER), so that an operator's program cannot read Weir's secrets. The
program `setpriv` (util-linux) changes the user. Files for an engine are written as that user, in a folder beside the
data folder, so that an engine's symlinks cannot redirect a write with Weir's permissions.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

# Bits of CapEff and CapAmb in /proc/self/status (capabilities(7)).
NEEDED = {"CHOWN": 0, "DAC_OVERRIDE": 1, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_PTRACE": 19}
PROBE_S = 10.0
_REACHABLE = '[ -w "$1" ] && [ -x "$1" ] || exit 3; [ ! -x "$2" ] || exit 4'
_WRITE = 'umask 077; rm -f -- "$1"; cat > "$1"'


class UnusableUser(OSError):
    """The engine user cannot be used, so nothing is started; the message says what to change."""


@dataclass(frozen=True, slots=True)
class EngineUser:
    name: str
    uid: int
    gid: int
    home: str

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` as this user, with its groups and without any capability."""
        user = ("--reuid", str(self.uid), "--regid", str(self.gid), "--init-groups")
        none = ("--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs")
        return ["setpriv", *user, *none, "--", *argv]

    def run(self, script: str, *words: str, given: str = "") -> int:
        """Run a shell script as this user. Return its exit status."""
        argv = self.argv(["sh", "-c", script, "sh", *words])
        done = subprocess.run(argv, input=given.encode(), capture_output=True, timeout=PROBE_S, check=False, cwd="/")
        return done.returncode

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name}


def current() -> EngineUser | None:
    """Return the engine user; None if engines run as Weir's own user. Raise UnusableUser."""
    name = settings.ENGINE_USER
    if not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise _unusable("this host has no such user") from None
    if entry.pw_uid in (0, os.geteuid()):
        raise _unusable("must be neither root nor the user that runs Weir")
    if missing := missing_capabilities():
        raise _unusable(f"this process must run as root, or with the ambient capabilities {', '.join(missing)}")
    if shutil.which("setpriv") is None:
        raise _unusable("the program setpriv (util-linux) is not on PATH")
    return EngineUser(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def _unusable(why: str) -> UnusableUser:
    return UnusableUser(f"WEIR_ENGINE_USER={settings.ENGINE_USER}: {why}")


def missing_capabilities() -> list[str]:
    # Only ambient capabilities of a user other than root survive the exec of setpriv.
    held = _capabilities("CapEff" if os.geteuid() == 0 else "CapAmb")
    return [f"CAP_{name}" for name, bit in NEEDED.items() if not held >> bit & 1]


def _capabilities(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith(f"{which}:")), 0)


def base() -> Path:
    """Return the parent of the engines' folders. Weir owns it, so that no engine can replace another engine's
    folder."""
    data = Path(settings.DATA_DIR)
    return data.with_name(f"{data.name}-engines")


def make_folder(user: EngineUser, folder: Path) -> None:
    """Create an instance's folder in `base()`. Raise UnusableUser if the user cannot reach it."""
    folder.parent.mkdir(exist_ok=True)
    folder.parent.chmod(0o711)
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    status = user.run(_REACHABLE, str(folder), str(settings.DATA_DIR))
    if status == 4:
        raise _unusable(f"can enter the data folder {settings.DATA_DIR}; take that right from it (mode 0700)")
    if status:
        raise _unusable(f"cannot enter {folder}; set WEIR_DATA_DIR to a folder whose parents it may enter")


def write(user: EngineUser, path: str, text: str) -> None:
    if user.run(_WRITE, path, given=text):
        raise _unusable(f"cannot write {path}")


def make_volume(user: EngineUser, folder: str) -> None:
    if user.run('mkdir -p -m 700 -- "$1"', folder):
        raise _unusable(f"cannot make the folder {folder}; make it and give it to that user")


def make_empty(user: EngineUser, folder: str) -> None:
    if user.run('rm -rf -- "$1" && mkdir -m 700 -- "$1"', folder):
        raise _unusable(f"cannot empty the folder {folder}; remove it")
