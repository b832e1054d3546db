"""Starts processes that outlive their launcher, each in its own session, and identifies them by pid and start time.
Pids are reused, so a process is identified by pid, start time (field 22 of /proc/<pid>/stat) and boot id. psutil's
create_time is unsuitable, as it changes when the clock is set.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_START_FIELD = 22 - 3  # index counted from `state`, the first field after the command in parentheses
_CPU_FIELDS = slice(14 - 3, 18 - 3)  # user and system time, of the process itself and of its ended children
_children: set[int] = set()
_ends: dict[int, int] = {}  # pid → exit code of an ended child; negative: the signal that killed it
_collecting = threading.Lock()  # one thread waits for a child and stores its exit code before another looks for it
ENDS_KEPT = 1_000
_LOOKS = 10
_LOOK_S = 0.002
# Ignored signals stay ignored across exec, and Celery's workers ignore some.
_RESET = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT, signal.SIGCHLD]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The kernel's view of one pid."""

    letter: str  # R, S, D, T (stopped), Z (zombie)
    started: float  # seconds after boot


def start(argv: Sequence[str], env: Mapping[str, str], log_path: Path) -> tuple[int, float]:
    """Start in a new session, with output appended to the log. Return (pid, start time). Raise OSError if the program
    cannot run."""
    collect_ended()
    output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            dict(env),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=_RESET,
        )
    finally:
        os.close(output)
    # Left by an earlier process with this id; another thread may already be collecting the new one
    _ends.pop(pid, None)
    _children.add(pid)
    state = inspect(pid)
    return pid, state.started if state else 0.0


def collect_ended() -> None:
    """Wait for ended children, which would otherwise remain as zombies."""
    with _collecting:
        for pid in tuple(_children):
            _collect(pid)


def _collect(pid: int) -> None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        _children.discard(pid)
        return
    if ended:
        _children.discard(pid)
        _ends[pid] = os.waitstatus_to_exitcode(status)
        while len(_ends) > ENDS_KEPT:
            _ends.pop(next(iter(_ends)))


def how_ended(pid: int | None) -> str:
    """Return the signal or exit status of a process started by this worker; for other processes it is unknown."""
    if pid not in _ends:  # it may have ended since its launcher was refreshed
        collect_ended()
    code = _ends.get(pid) if pid else None
    if code is None:
        return "the process ended (another worker started it, so its exit status is unknown)"
    if code >= 0:
        return f"the process ended with exit status {code}"
    return f"the process was killed by {_signal_name(-code)} (signal {-code})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "a real-time signal"


def _stat(pid: int) -> list[bytes]:
    """Return the fields from `state` on; empty if the process has ended."""
    try:
        # Called hundreds of times per second; a Path would double the cost
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()  # the command may contain spaces and parentheses
    except (FileNotFoundError, ProcessLookupError):
        return []


def inspect(pid: int) -> ProcessState | None:
    fields = _stat(pid)
    return ProcessState(fields[0].decode(), int(fields[_START_FIELD]) / _TICKS) if fields else None


def cpu_s(pid: int) -> float:
    """Return the CPU time of the process and of its ended children; 0 if the process has ended."""
    return sum(map(int, _stat(pid)[_CPU_FIELDS])) / _TICKS


def is_alive(pid: int | None, pid_started: float | None) -> bool:
    """Return whether this process runs, and is neither a zombie nor another process with the same pid."""
    if not pid or pid_started is None:
        return False
    state = inspect(pid)
    return state is not None and state.letter not in "ZX" and state.started == pid_started


def send(pid: int | None, pid_started: float | None, number: signal.Signals) -> bool:
    """Signal the process and its group. Return False if it has ended."""
    if not pid or not is_alive(pid, pid_started):
        return False
    try:
        os.killpg(os.getpgid(pid), number)
    except (ProcessLookupError, PermissionError):  # it has ended, or belongs to another user and must not be ended
        return False
    return True


def stop(pid: int | None, pid_started: float | None, grace_s: float) -> bool:
    """Send SIGTERM, then SIGKILL after the grace period. Return once the process has ended; True if it ended within the
    period."""
    if not send(pid, pid_started, signal.SIGTERM):
        return True
    if gone_within([(pid, pid_started)], grace_s):
        return True
    send(pid, pid_started, signal.SIGKILL)
    gone_within([(pid, pid_started)], 5.0)
    return False


def gone_within(processes: Sequence[tuple[int | None, float | None]], limit_s: float) -> bool:
    """Wait until none of the processes, given as (pid, start time), is running. Return False if one still is."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        collect_ended()
        if not any(is_alive(pid, started) for pid, started in processes):
            return True
        time.sleep(0.02)
    return False


@functools.cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def environment(base_dir: Path, markers: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine: paths and locale, without the control plane's secrets."""
    kept = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    return kept | {"PYTHONPATH": str(base_dir), "PYTHONUNBUFFERED": "1"} | dict(markers) | dict(extra)


_INHERITED = {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV"}
_INHERITED_PREFIXES = ("LC_", "NVIDIA_", "NCCL_", "UCX_", "HF_")


def find(markers: Mapping[str, str]) -> list[tuple[int, float]]:
    """Find this user's processes with these variables, because their launcher may have ended before it recorded their
    pids. Only session leaders are returned, or the remaining processes of a session without a leader.
    """
    return [(pid, started) for pid, started, _ in find_marked(markers)]


def find_marked(markers: Mapping[str, str]) -> list[tuple[int, float, dict[str, str]]]:
    """Find processes like `find`; return pid, start time and Weir's variables of each."""
    wanted = {f"{name}={value}".encode() for name, value in markers.items()}
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = [(pid, held) for pid, held in _environments(entries) if wanted <= held and _represents_session(pid)]
    return [
        (pid, state.started, _variables(held))
        for pid, held in found
        if (state := inspect(pid)) and state.letter not in "ZX"
    ]


def _variables(held: set[bytes]) -> dict[str, str]:
    pairs = (entry.decode(errors="replace").partition("=") for entry in held if entry.startswith(b"WEIR_"))
    return {name: value for name, _, value in pairs}


def _environments(entries: list[Path]) -> Iterator[tuple[int, set[bytes]]]:
    """Yield pids and variables. A process that is replacing its program shows no variables, so it is read again."""
    for _ in range(_LOOKS):
        executing = []
        for entry in entries:
            if text := _environ(entry):
                yield int(entry.name), set(text.split(b"\0"))
            elif _has_program(entry):
                executing.append(entry)
        if not (entries := executing):
            return
        time.sleep(_LOOK_S)


def _environ(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""  # it has ended, or belongs to another user; any other error must not look like "nothing runs"


def _has_program(entry: Path) -> bool:
    """Return False for kernel threads, ended processes and processes of other users."""
    try:
        (entry / "exe").readlink()
    except OSError:
        return False
    return True


def _represents_session(pid: int) -> bool:
    try:
        leader = os.getsid(pid)
    except ProcessLookupError:
        return False
    state = inspect(leader)
    return leader == pid or state is None or state.letter in "ZX"
