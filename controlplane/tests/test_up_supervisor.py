"""The supervisor continues when nothing can be recorded, and ends the engines however it ends itself."""

import asyncio
import contextlib
import errno
import io
import os
import signal
import sys
from dataclasses import replace

import pytest

from controlplane.doors.up import CannotStart, console, database, ready, supervisor, weir
from controlplane.doors.up.child import Child, open_log
from controlplane.doors.up.plan import Process, Ready
from controlplane.doors.up.supervisor import Hooks, Supervisor, cause

SLEEP = "import time; time.sleep(60)"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Calls(list):
    def hooks(self):
        async def note(name):
            self.append(name)
            return True

        return Hooks(
            lambda: note("prepare"),
            lambda: note("announce"),
            lambda: note("before traffic"),
            lambda: note("stop engines"),
            lambda: self.append("kill engines"),
        )


@pytest.fixture
def calls():
    return Calls()


def process(name, stage="servers", code=SLEEP):
    return Process(name, stage, (sys.executable, "-c", code), Ready("running"), 1.0)


@pytest.fixture
def supervise(tmp_path, calls, monkeypatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(supervisor, "restart_delay_s", lambda failures: 0.01)

    def make(*plan, **changes):
        environment = {**os.environ, "REDIS_URL": "unix:///nowhere"}
        hooks = replace(calls.hooks(), **changes)
        return Supervisor(plan or (process("web"),), tmp_path, tmp_path, environment, hooks)

    return make


@contextlib.asynccontextmanager
async def running(supervisor):
    """Run Weir until it has announced itself, then stop it with a signal as an operator does."""
    task = asyncio.ensure_future(supervisor.run())
    await asyncio.wait_for(until(lambda: task.done() or supervisor.children[0].pid), 20)
    yield task
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(task, 20)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


async def restarted(child):
    before = child.pid
    os.kill(before, signal.SIGKILL)
    await asyncio.wait_for(until(lambda: child.pid not in (before, None)), 20)


def fails(*_args, **_more):
    raise FULL


async def test_a_process_is_restarted_although_nothing_can_be_recorded(supervise, calls, monkeypatch, capsys):
    monkeypatch.setattr(supervisor, "write_record", fails)
    weir = supervise()
    async with running(weir):
        await restarted(weir.children[0])
    assert "processes.json was not written: No space left on device" in capsys.readouterr().out
    assert calls[-1] == "stop engines"
    assert weir.children[0].pid is None


async def test_a_process_that_cannot_be_started_again_is_tried_until_it_can(supervise, monkeypatch, capsys):
    weir = supervise()
    async with running(weir):
        start, tries = Child.start, []

        async def refused_twice(child):
            tries.append(child)
            if len(tries) < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            await start(child)

        monkeypatch.setattr(Child, "start", refused_twice)
        await restarted(weir.children[0])
    assert capsys.readouterr().out.count("web          cannot be started: [Errno 24] Too many open files; again") == 2


async def test_a_stop_while_waiting_for_the_next_attempt_starts_nothing(supervise, monkeypatch):
    monkeypatch.setattr(supervisor, "restart_delay_s", lambda failures: 0.2)
    weir = supervise(process("web", code="raise SystemExit(3)"))
    weir.children[0].stopping = True
    assert await weir._start_again(weir.children[0]) == ""
    assert weir.children[0].handle is None


async def test_a_process_that_cannot_be_started_ends_the_first_start_with_one_line(supervise, calls, monkeypatch):
    monkeypatch.setattr(Child, "start", fails)
    with pytest.raises(BaseExceptionGroup) as errors:
        await supervise().run()
    assert str(cause(errors.value)) == "web cannot be started: [Errno 28] No space left on device"
    assert isinstance(cause(errors.value), CannotStart)
    assert calls[-1] == "stop engines"


@pytest.mark.parametrize("stage", ["background", "traffic"])
async def test_a_process_that_cannot_be_started_once_weir_is_up_is_tried_again(supervise, monkeypatch, capsys, stage):
    weir = supervise(process("web"), process("late", stage))
    start, tries = Child.start, []

    async def refused_once(child):
        if child.process.name == "late" and not tries:
            tries.append(child)
            raise FULL
        await start(child)

    monkeypatch.setattr(Child, "start", refused_once)
    async with running(weir):
        await asyncio.wait_for(until(lambda: weir.children[1].pid), 20)
    assert "late         cannot be started: [Errno 28] No space left on device; again" in capsys.readouterr().out


async def test_a_worker_that_dies_while_it_starts_once_weir_is_up_is_started_again(supervise, monkeypatch, capsys):
    """Without this rule the worker would end all of Weir, like a worker that dies before Weir is up."""
    monkeypatch.setitem(ready.CHECKS, "never", lambda *_: asyncio.sleep(0, False))
    weir = supervise(process("web"), replace(process("experiments", "background"), ready=Ready("never")))
    async with running(weir) as task:
        worker = weir.children[1]
        await asyncio.wait_for(until(lambda: worker.pid), 20)
        await restarted(worker)
        assert not task.done()
    assert "experiments  ended with status -9" in capsys.readouterr().out


async def test_engines_that_cannot_be_stopped_in_order_are_killed(supervise, calls, capsys):
    async def no_database():
        raise RuntimeError("database or disk is full")

    async with running(supervise(stop_engines=no_database)):
        pass
    assert calls[-1] == "kill engines"
    assert "engines      could not be stopped in order, so they are killed: database or" in capsys.readouterr().out


async def test_engines_that_take_too_long_are_killed(supervise, calls, monkeypatch):
    monkeypatch.setattr(supervisor, "ENGINES_S", 0.05)
    async with running(supervise(stop_engines=lambda: asyncio.sleep(60))):
        pass
    assert calls[-1] == "kill engines"


async def test_a_failure_while_the_engines_are_killed_still_stops_the_rest(supervise, monkeypatch, capsys):
    weir = supervise(process("redis", "store"), process("web"), stop_engines=fails, kill_engines=fails)
    async with running(weir):
        pass
    assert [child.pid for child in weir.children] == [None, None]
    assert "the engines could not be killed: [Errno 28]" in capsys.readouterr().err


async def test_a_process_that_cannot_be_stopped_does_not_prevent_stopping_the_others(
    supervise, calls, monkeypatch, capsys
):
    weir = supervise(process("redis", "store"), process("web"))
    stop = Child.stop

    async def stubborn(child):
        await stop(child)
        if child.process.name == "web":
            raise PermissionError("not permitted")

    monkeypatch.setattr(Child, "stop", stubborn)
    async with running(weir):
        pass
    assert [child.pid for child in weir.children] == [None, None]
    assert "a process could not be stopped: not permitted" in capsys.readouterr().out


async def test_a_failure_of_the_supervisor_itself_ends_the_engines(supervise, calls, monkeypatch):
    async def breaks():
        raise RuntimeError("a mistake of ours")

    with pytest.raises(BaseExceptionGroup):
        await supervise(announce=breaks).run()
    assert calls[-1] == "stop engines"


async def test_killing_everything_continues_although_the_record_cannot_be_removed(supervise, calls, monkeypatch):
    monkeypatch.setattr(os, "_exit", calls.append)
    weir = supervise()
    weir.recorded.mkdir()  # unlink fails
    weir._kill_everything()
    assert calls == ["kill engines", 130]


def test_a_console_that_accepts_no_output_is_ignored(monkeypatch):
    class Full(io.StringIO):
        write = fails

    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        console.say("web", "ready")
        console.complain("port in use")


async def test_without_a_place_for_its_log_a_process_runs_without_one(supervise, tmp_path):
    (tmp_path / "logs").rmdir()
    weir = supervise()
    async with running(weir):
        assert weir.children[0].pid
        assert weir.children[0].last_line() == "no output"
    with open_log(tmp_path / "logs" / "web.log") as log:
        assert log.name == os.devnull


@pytest.mark.django_db(transaction=True)
def test_a_database_that_does_not_answer_has_no_model_and_no_ready_instances(monkeypatch):
    def refuses(*_args, **_more):
        raise database.DatabaseError("disk I/O error")

    monkeypatch.setattr(database.selectors, "pools", refuses)
    monkeypatch.setattr(database.selectors, "pool_ready", refuses)
    assert database.served_model() == ""
    assert database.ready_instances("demo") is None


async def test_up_waits_for_the_fleet_while_the_database_does_not_answer(monkeypatch, capsys):
    answers = [None, (0, 2), (2, 2)]
    monkeypatch.setattr(weir, "_demo_pool", lambda: answers.pop(0))
    assert await weir.Weir(weir.Options()).fleet_is_ready()
    assert "2/2 instances of pool demo are ready" in capsys.readouterr().out


async def test_a_fleet_that_stays_unknown_gets_no_traffic(monkeypatch):
    monkeypatch.setattr(weir, "FLEET_IDLE_S", 0.0)
    monkeypatch.setattr(weir, "_demo_pool", lambda: None)
    assert not await weir.Weir(weir.Options()).fleet_is_ready()
