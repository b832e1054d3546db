"""Starts the plan in stages, restarts a process that ends by itself, and stops everything in order."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.doors.up import CannotStart
from controlplane.doors.up.child import Child
from controlplane.doors.up.console import complain, say
from controlplane.doors.up.plan import STOP_ORDER, Process, Stage, failures_after, restart_delay_s
from controlplane.doors.up.ready import wait
from controlplane.doors.up.record import end_groups, leftovers, write_record
from fleet.node.logs import trim

TRIM_EVERY_S = 60.0
ENGINES_S = 3.0  # limit for stopping the engines


@dataclass(frozen=True)
class Hooks:
    """The parts that know Weir, as opposed to mere processes."""

    prepare: Callable[[], Awaitable[None]]  # runs once Redis answers: brings database and fleet up to date
    announce: Callable[[], Awaitable[None]]  # runs once the pages answer: informs the operator
    before_traffic: Callable[[], Awaitable[bool]]  # waits for the fleet; returns False if no pool can take the traffic
    stop_engines: Callable[[], Awaitable[None]]
    kill_engines: Callable[[], None]


class Supervisor:
    def __init__(
        self, plan: tuple[Process, ...], folder: Path, code: Path, environment: Mapping[str, str], hooks: Hooks
    ) -> None:
        self.children = [Child(process, folder / "logs", environment, code) for process in plan]
        self.recorded = folder / "run" / "processes.json"
        self.redis_url = environment["REDIS_URL"]
        self.hooks = hooks
        self.asked_to_stop = False

    async def run(self) -> None:
        """Run until a signal. Raise CannotStart if a process does not start. In either case, no process is left
        running."""
        main = asyncio.ensure_future(self._live())
        self._listen(main)
        try:
            await main
        except asyncio.CancelledError:
            say("up", "stopping; press Ctrl-C again to kill everything at once")
        finally:
            await self._take_down()

    def _listen(self, main: "asyncio.Future[None]") -> None:
        def on_signal() -> None:
            if self.asked_to_stop or main.done():
                self._kill_everything()
            self.asked_to_stop = True
            main.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal)

    async def _live(self) -> None:
        end_groups(leftovers(self.recorded))
        async with asyncio.TaskGroup() as tasks:
            await self._bring_up(("store",), tasks)
            async with asyncio.TaskGroup() as starts:
                # The servers load their code meanwhile; they wait for the database themselves.
                starts.create_task(self._bring_up(("servers",), tasks))
                await self.hooks.prepare()
                # Workers do not start earlier, because their imports would take the second of two cores away from the
                # page.
                await self._bring_up(("workers",), tasks)
            await self.hooks.announce()
            # Weir is up: from now on, a process that ends does not end the others.
            tasks.create_task(self._background(tasks))
            tasks.create_task(self._traffic(tasks))
            tasks.create_task(self._keep_logs_short())

    async def _bring_up(self, stages: tuple[Stage, ...], tasks: asyncio.TaskGroup) -> None:
        children = self._in(*stages)
        async with asyncio.TaskGroup() as starts:
            for child in children:
                starts.create_task(self._start(child))
        for child in children:
            tasks.create_task(self._watch(child))

    async def _start(self, child: Child) -> None:
        try:
            await self._launch(child)
        except OSError as error:
            raise CannotStart(f"{child.process.name} cannot be started: {error}") from error
        await self._ready(child)

    async def _ready(self, child: Child) -> None:
        await wait(child, self.redis_url)
        say(child.process.name, f"ready in {child.ran_s:.1f} s  {child.process.shows}")

    async def _launch(self, child: Child) -> None:
        await child.start()
        running = {each.process.name: each.pid for each in self.children if each.pid is not None}
        try:
            write_record(self.recorded, running)
        except OSError as error:
            # A failed write is ignored: only a later `up` reads the record, and the kernel ends the processes of a
            # killed `up` in any case.
            say("up", f"{self.recorded} was not written: {error.strerror}")

    async def _background(self, tasks: asyncio.TaskGroup) -> None:
        for child in self._in("background"):
            tasks.create_task(self._watch(child, await self._start_again(child)))
            with contextlib.suppress(CannotStart):
                await self._ready(child)

    async def _traffic(self, tasks: asyncio.TaskGroup) -> None:
        if not self._in("traffic") or not await self.hooks.before_traffic():
            return
        for child in self._in("traffic"):
            trouble = await self._start_again(child)
            if not trouble:
                say(child.process.name, child.process.shows)
            tasks.create_task(self._watch(child, trouble))

    async def _watch(self, child: Child, trouble: str = "") -> None:
        """Restart the child whenever it ends, with a growing delay while it keeps ending. `trouble` says why its
        first start failed."""
        while not child.stopping:
            trouble = trouble or f"ended with status {await child.ended()} ({child.last_line()[:160]})"
            while trouble and not child.stopping:
                child.failures = failures_after(child.failures, child.ran_s)
                delay = restart_delay_s(child.failures)
                say(child.process.name, f"{trouble}; again in {delay:g} s")
                await asyncio.sleep(delay)
                trouble = await self._start_again(child)

    async def _start_again(self, child: Child) -> str:
        """Start the child again. Return why it could not be started; empty if it was."""
        if child.stopping:
            return ""
        try:
            await self._launch(child)
        except OSError as error:  # if there is no memory, file or process for it, the others must not end
            return f"cannot be started: {error}"
        return ""

    async def _keep_logs_short(self) -> None:
        while True:
            await asyncio.sleep(TRIM_EVERY_S)
            for child in self.children:
                trim(child.log)

    async def _take_down(self) -> None:
        """Take every step of the shutdown, even if one fails."""
        for stages in STOP_ORDER:
            stopped = await asyncio.gather(*(child.stop() for child in self._in(*stages)), return_exceptions=True)
            for error in filter(None, stopped):
                say("up", f"a process could not be stopped: {error}")
            if "workers" in stages:
                await self._stop_engines()
        self._forget()

    async def _stop_engines(self) -> None:
        try:
            await asyncio.wait_for(self.hooks.stop_engines(), ENGINES_S)
        except TimeoutError:
            self._kill_engines()
        except Exception as error:
            say("engines", f"could not be stopped in order, so they are killed: {error}")
            self._kill_engines()

    def _kill_engines(self) -> None:
        try:
            self.hooks.kill_engines()
        except Exception as error:
            complain(f"the engines could not be killed: {error}")

    def _kill_everything(self) -> None:
        complain("killed")
        for child in self.children:
            child.stopping = True
            child.signal(signal.SIGKILL)
        self._kill_engines()
        self._forget()
        os._exit(130)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self.recorded.unlink(missing_ok=True)

    def _in(self, *stages: Stage) -> list[Child]:
        return [child for child in self.children if child.process.stage in stages]


def cause(error: BaseException) -> CannotStart | None:
    """Return the first CannotStart of a group; several processes may fail at the same time."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := cause(inner))), None)
    return error if isinstance(error, CannotStart) else None
