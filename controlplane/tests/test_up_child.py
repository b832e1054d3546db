import asyncio
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from controlplane.base.process.patience import Patience
from controlplane.doors.up import CannotStart, ready, record
from controlplane.doors.up.child import Child
from controlplane.doors.up.plan import Process, Ready
from fleet.node import process as launch

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)


@pytest.fixture
async def make(tmp_path):
    children = []

    def child(code, grace_s=5.0):
        process = Process("thing", "servers", (sys.executable, "-c", code), Ready("running"), grace_s)
        children.append(Child(process, tmp_path, dict(os.environ), tmp_path))
        return children[-1]

    yield child
    for each in children:
        each.signal(signal.SIGKILL)
        if each.handle is not None:
            await each.ended()


async def says(child, text):
    while text not in (child.log.read_text() if child.log.exists() else ""):
        await asyncio.sleep(0.02)


async def test_the_output_of_a_process_is_written_to_its_log(make):
    child = make("import sys; print('out', flush=True); print('trouble', file=sys.stderr)")
    await child.start()
    assert await child.ended() == 0
    assert child.last_line() == "trouble"


async def test_a_childs_last_line_cannot_move_the_terminals_cursor(make):
    child = make(r"print('\x1b[2J\x1b]0;title\x07all is \x08well\u202e')")
    await child.start()
    await child.ended()
    assert child.last_line() == "all is \ufffdwell\ufffd"


async def test_a_child_has_its_own_session(make):
    child = make("import time; time.sleep(60)")
    await child.start()
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(make):
    child = make(STUBBORN, grace_s=0.1)
    await child.start()
    await says(child, "deaf")
    await child.stop()
    assert child.status == -signal.SIGKILL


async def test_a_child_that_obeys_is_not_killed(make):
    child = make("import time; print('here', flush=True); time.sleep(60)")
    await child.start()
    await says(child, "here")
    await child.stop()
    assert child.status == -signal.SIGTERM


async def test_a_child_that_exits_during_startup_is_reported_with_its_last_log_line(make):
    child = make("raise SystemExit('port 8080 is in use')")
    await child.start()
    await child.ended()
    with pytest.raises(CannotStart, match=r"thing ended with status 1: port 8080 is in use \(log: "):
        await ready.wait(child, "unix:///nowhere")


async def test_a_silent_child_is_abandoned(make):
    child = make("import time; time.sleep(60)")
    child.process = Process("thing", "servers", child.process.argv, Ready("http", "http://127.0.0.1:9/healthz"), 1.0)
    await child.start()
    with pytest.raises(CannotStart, match=r"thing does not answer: no progress for 0.2 s \(log: "):
        await ready.wait(child, "unix:///nowhere", Patience(time.monotonic(), idle_s=0.2))


class Slow:
    """A process on a machine so slow that it serves only at the 200th poll, with a second between two polls."""

    def __init__(self, monkeypatch, log, works):
        self.process = Process("web", "servers", (), Ready("slow"), 1.0)
        self.pid, self.status, self.ran_s, self.log = 7, 3, 99.0, log
        self.looks = 0
        monkeypatch.setitem(ready.CHECKS, "slow", self.serves)
        monkeypatch.setattr(ready, "STEP_S", 0.0)
        monkeypatch.setattr(ready, "time", SimpleNamespace(monotonic=lambda: self.looks))
        monkeypatch.setattr(ready.process, "cpu_s", lambda pid: self.looks * works)

    async def serves(self, *_asked):
        self.looks += 1
        return self.looks == 200

    def last_line(self):
        return "Loading the applications"


async def test_the_wait_for_a_slow_process_lasts_while_it_makes_progress_and_is_reported(monkeypatch, tmp_path, capsys):
    slow = Slow(monkeypatch, tmp_path / "none.log", works=0.05)
    await ready.wait(slow, "")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13
    assert lines[0] == "web          still starts after 99 s, 0.7 s of CPU time used: Loading the applications"


async def test_the_wait_for_a_child_continues_while_it_only_writes_to_its_log(monkeypatch, tmp_path):
    slow = Slow(monkeypatch, tmp_path / "web.log", works=0)
    monkeypatch.setattr(slow, "last_line", lambda: str(slow.log.write_text("x" * slow.looks)))
    await ready.wait(slow, "")
    assert slow.looks == 200


async def test_an_idle_event_loop_does_not_count_as_progress(monkeypatch, tmp_path):
    slow = Slow(monkeypatch, tmp_path / "none.log", works=0.0005)
    with pytest.raises(CannotStart, match="web does not answer: no progress for 60 s"):
        await ready.wait(slow, "")
    assert slow.looks < 70


async def test_a_child_that_dies_during_startup_ends_the_wait_at_once(monkeypatch, tmp_path):
    slow = Slow(monkeypatch, tmp_path / "none.log", works=1)

    async def dies(*_asked):
        slow.pid = None
        return False

    monkeypatch.setitem(ready.CHECKS, "slow", dies)
    with pytest.raises(CannotStart, match="web ended with status 3: Loading the applications"):
        await ready.wait(slow, "")


def test_the_cpu_time_of_a_process_grows_with_its_work_and_is_0_once_it_is_gone():
    before, end = launch.cpu_s(os.getpid()), time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert launch.cpu_s(os.getpid()) > before
    assert launch.cpu_s(2**30) == 0.0


async def test_processes_left_by_a_killed_up_are_found_and_ended(make, tmp_path):
    child = make("import time; time.sleep(60)")
    await child.start()
    path = tmp_path / "processes.json"
    record.write_record(path, {"thing": child.pid})
    assert record.leftovers(path) == {"thing": child.pid}
    record.end_groups(record.leftovers(path))
    assert await child.ended() == -signal.SIGKILL
    assert record.leftovers(path) == {}


def test_a_pid_that_now_belongs_to_another_process_is_left_alone(tmp_path):
    path = tmp_path / "processes.json"
    started = launch.inspect(os.getpid()).started
    path.write_text(f'{{"web": {{"pid": {os.getpid()}, "started": {started - 1}}}}}')
    assert record.leftovers(path) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"web": 3}', '{"web": {"pid": "x", "started": 1}}'])
def test_an_unreadable_record_names_nothing_to_end(tmp_path, text):
    (tmp_path / "processes.json").write_text(text)
    assert record.leftovers(tmp_path / "processes.json") == {}
