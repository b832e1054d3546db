"""Start, observe and end processes."""

import errno
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.node import logs, process
from fleet.plan.failure import failure_cause

SLEEP = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]

Start = Callable[..., tuple[int, float]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "out.log"


@pytest.fixture
def start(log: Path) -> Iterator[Start]:
    started = []

    def begin(argv: list[str], **env: str) -> tuple[int, float]:
        started.append(process.start(argv, {"PATH": os.environ["PATH"], **env}, log))
        return started[-1]

    yield begin
    for pid, pid_started in started:
        process.stop(pid, pid_started, grace_s=0)
    process.collect_ended()


def is_suspended(pid: int) -> bool:
    state = process.inspect(pid)
    return state is not None and state.letter in "Tt"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_leads_its_own_session_and_writes_to_its_log(start: Start, log: Path) -> None:
    pid, started = start(SLEEP)
    until(lambda: log.read_text() == "up\n")
    assert os.getsid(pid) == pid
    assert process.is_alive(pid, started)
    assert oct(log.stat().st_mode)[-3:] == "600"


def test_children_do_not_ignore_a_signal_that_weir_ignores(start: Start, log: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        pid, started = start(SLEEP)
    finally:
        signal.signal(signal.SIGTERM, before)
    until(lambda: log.read_text() == "up\n")
    assert process.stop(pid, started, grace_s=10) is True


def test_a_pid_with_another_start_time_is_another_process(start: Start) -> None:
    pid, started = start(SLEEP)
    assert not process.is_alive(pid, started + 0.01)
    assert not process.send(pid, started + 0.01, signal.SIGKILL)
    assert process.is_alive(pid, started)


def test_a_zombie_counts_as_dead(start: Start) -> None:
    pid, started = start([sys.executable, "-c", ""])
    until(lambda: (process.inspect(pid) or process.ProcessState("Z", 0)).letter == "Z")
    assert not process.is_alive(pid, started)
    process.collect_ended()
    assert process.inspect(pid) is None


def test_a_process_that_ends_on_request_is_distinguished_from_a_killed_one(start: Start, log: Path) -> None:
    pid, started = start(STUBBORN)
    until(lambda: log.read_text() == "up\n")
    assert process.stop(pid, started, grace_s=0.1) is False
    assert not process.is_alive(pid, started)
    assert process.stop(pid, started, grace_s=5) is True  # it has already ended


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -9 $$", "the process was killed by SIGKILL (signal 9)"),
        ("kill -40 $$", "the process was killed by a real-time signal (signal 40)"),
        ("exit 3", "the process ended with exit status 3"),
    ],
)
def test_an_ended_process_reports_its_signal_or_exit_status(start: Start, script: str, told: str) -> None:
    pid, _ = start(["sh", "-c", script])
    until(lambda: (process.inspect(pid) or process.ProcessState("Z", 0)).letter == "Z")  # not reaped
    assert process.how_ended(pid) == told


def test_the_end_of_a_process_that_another_thread_collects_during_its_start_is_known(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CollectedAtOnce(set[int]):
        def add(self, pid: int) -> None:
            super().add(pid)
            until(lambda: (process.inspect(pid) or process.ProcessState("Z", 0)).letter == "Z")
            process.collect_ended()

    monkeypatch.setattr(process, "_children", CollectedAtOnce())
    pid, _ = start(["sh", "-c", "exit 3"])
    assert process.how_ended(pid) == "the process ended with exit status 3"


def test_the_exit_status_of_another_workers_process_is_unknown() -> None:
    assert process.how_ended(1) == process.how_ended(None)
    assert "exit status is unknown" in process.how_ended(1)


def test_the_children_of_a_process_end_with_it(start: Start, log: Path) -> None:
    code = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    pid, started = start([sys.executable, "-c", code])
    until(lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    process.stop(pid, started, grace_s=5)
    until(lambda: (process.inspect(child) or process.ProcessState("Z", 0)).letter == "Z")


def test_a_suspended_process_is_recognised(start: Start) -> None:
    pid, started = start(SLEEP)
    assert not is_suspended(pid)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_suspended(pid))
    assert process.is_alive(pid, started)


def test_a_missing_program_is_an_error(start: Start) -> None:
    with pytest.raises(FileNotFoundError):
        start(["/nowhere/engine"])


def test_a_process_is_identified_by_its_environment(start: Start) -> None:
    found = start(SLEEP, WEIR_INSTANCE="here", WEIR_FLEET="mine")
    start(SLEEP, WEIR_INSTANCE="here", WEIR_FLEET="theirs")
    assert process.find({"WEIR_INSTANCE": "here", "WEIR_FLEET": "mine"}) == [found]


def test_children_of_a_killed_process_are_identified_and_ended(start: Start) -> None:
    # For example vLLM's engine core, when the server that started it is killed
    marks = {"WEIR_INSTANCE": "parent", "WEIR_FLEET": "mine"}
    parent, started = start(["sh", "-c", "sleep 600 & wait"], **marks)
    until(lambda: len(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()) == 1)
    child = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
    assert process.find(marks) == [(parent, started)]
    os.kill(parent, signal.SIGKILL)
    until(lambda: [pid for pid, _ in process.find(marks)] == [child])
    for orphan in process.find(marks):
        process.stop(*orphan, grace_s=0)
    assert process.find(marks) == []


def test_a_process_that_is_replacing_its_program_is_identified(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # Linux shows an empty environment between the old program's end and the new one's start.
    marks = {"WEIR_INSTANCE": "here", "WEIR_FLEET": "replaced"}
    pid, started = start(SLEEP, **marks)
    read = Path.read_bytes
    looks: list[Path] = []

    def replacing(path: Path) -> bytes:
        if path == Path(f"/proc/{pid}/environ") and len(looks) < 2:
            looks.append(path)
            return b""
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", replacing)
    assert process.find_marked(marks) == [(pid, started, marks)]
    assert len(looks) == 2


def test_a_check_without_file_descriptors_does_not_conclude_that_nothing_runs(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(SLEEP, WEIR_INSTANCE="here", WEIR_FLEET="mine")

    def exhausted(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        process.find({"WEIR_INSTANCE": "here", "WEIR_FLEET": "mine"})


def test_a_process_of_another_user_gets_no_signal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, started = start(SLEEP)

    def refused(group: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", refused)
        assert not process.send(pid, started, signal.SIGTERM)


@pytest.mark.parametrize(("pid", "started"), [(None, None), (None, 1.0), (1, None), (2**22 + 1, 1.0)])
def test_an_unrecorded_process_is_not_alive(pid: int | None, started: float | None) -> None:
    assert not process.is_alive(pid, started)


def test_secrets_are_not_handed_to_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_KEY", "hush")
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hush@h/d")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    given = process.environment(Path("/srv"), {"WEIR_INSTANCE": "a"}, {"X": "1"})
    assert "hush" not in str(given)
    assert (given["NCCL_DEBUG"], given["WEIR_INSTANCE"], given["X"], given["PYTHONPATH"]) == ("INFO", "a", "1", "/srv")


def test_the_tail_of_a_log_consists_of_complete_lines(log: Path) -> None:
    log.write_text("".join(f"line {n}\n" for n in range(20_000)))
    assert logs.tail(log, 2) == ["line 19998", "line 19999"]
    everything = logs.tail(log, 100_000)
    assert everything[0].startswith("line ")
    assert len(everything) < 20_000
    assert logs.tail(log.with_name("none"), 5) == []


def test_a_line_without_an_end_is_shown_from_its_end(log: Path) -> None:
    log.write_text("x" * 1_000_000 + "the end")
    (line,) = logs.tail(log, 5)
    assert line == "…" + "x" * (logs.LONGEST_LINE - 7) + "the end"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1b]52;c;never ended", ""),
        ("\x1bcreset", "\ufffdcreset"),
        ("bell\x07 null\0 back\x08", "bell\ufffd null\ufffd back\ufffd"),
        ("turned \u202eround", "turned \ufffdround"),
        ("\x9b31m one byte", "\ufffd31m one byte"),
        ("tab\tstays, and ünïcode", "tab\tstays, and ünïcode"),
    ],
)
def test_log_lines_reach_pages_and_terminals_without_control_characters(line: str, shown: str) -> None:
    assert logs.plain(line) == shown


@given(st.text())
def test_no_line_keeps_a_control_character(line: str) -> None:
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", logs.plain(line))


def test_a_log_beyond_its_limit_is_rotated_once(log: Path) -> None:
    log.write_text("x" * 60 + "y" * 40)
    logs.trim(log, limit=50)
    assert (log.read_text(), log.with_suffix(".log.1").read_text()) == ("", "x" * 10 + "y" * 40)
    log.write_text("z")
    logs.trim(log, limit=50)
    assert log.read_text() == "z"


def test_a_log_is_emptied_if_there_is_no_space_for_its_copy(log: Path) -> None:
    log.write_bytes(bytes(100_000))
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        logs.trim(log, limit=80_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not log.with_suffix(".log.1").exists()
    assert log.read_bytes() == b""


def test_a_missing_log_needs_no_trimming(log: Path) -> None:
    logs.trim(log)
    assert not log.exists()


def test_a_large_log_is_rotated_at_the_next_start(settings: object, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path  # type: ignore[attr-defined]
    path = logs.prepare("p-0")
    path.write_bytes(b"x" * (logs.ROTATE_BYTES + 1))
    assert logs.prepare("p-0") == path
    assert not path.exists()
    assert path.with_suffix(".log.1").stat().st_size == logs.ROTATE_BYTES + 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "it wrote nothing to its log"),
        (["a", "", "b ", " "], "its log ends with: b"),
        (
            ["ValueError: no good", "RuntimeError: Engine core initialization failed.", "  warnings.warn('leak')"],
            "its log ends with: ValueError: no good",
        ),
    ],
)
def test_a_known_cause_is_reported(lines: list[str], words: str) -> None:
    assert failure_cause(lines).startswith(words)


def test_log_lines_of_earlier_processes_are_not_the_cause() -> None:
    lines = ["== weir: epoch 1 at x", "MemoryError", "== weir: epoch 2 at x", "bye"]
    assert failure_cause(logs.of_latest_start(lines)) == "its log ends with: bye"
    assert logs.of_latest_start(["bye"]) == ["bye"]
