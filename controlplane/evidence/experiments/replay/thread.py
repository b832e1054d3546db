"""Runs a replay in a thread with its own event loop; the caller can watch and stop it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from controlplane.evidence.experiments.replay.client import NoAnswer, ReplayClient
from controlplane.evidence.experiments.replay.drive import OfferedLoad, ReplayProgress, play
from controlplane.evidence.experiments.results.records import Appender
from controlplane.evidence.experiments.results.statistics import stats

LAG_EVERY_S = 1.0
LAG_GAUGE = b"weir_sim_lag_seconds"
PAGE_BYTES = 1 << 20
STOP_S = 5.0


@dataclass(slots=True)
class ReplayFacts:
    """Measurements of a replay other than those of its requests."""

    wall_s: float = 0.0
    client_cpu_s: float = 0.0
    sim_lag_p99_s: float | None = None  # wall clock; None if no engine reports it
    machine_busy: float | None = None  # busy share of all CPUs, 0–1

    def as_dict(self) -> dict[str, float | None]:
        return {
            "wall_s": round(self.wall_s, 3),
            "client_cpu_s": round(self.client_cpu_s, 3),
            "sim_lag_p99_s": self.sim_lag_p99_s if self.sim_lag_p99_s is None else round(self.sim_lag_p99_s, 4),
            "machine_busy": self.machine_busy if self.machine_busy is None else round(self.machine_busy, 4),
        }


class ReplayThread:
    """A replay in a thread. Call `start`, watch `progress` until `ended_within`, `stop` if needed, then `finish`."""

    def __init__(self, load: OfferedLoad, routers: Sequence[str], instances: Sequence[str], path: Path) -> None:
        self.progress = ReplayProgress()
        self.facts = ReplayFacts()
        self._load, self._routers, self._instances, self._path = load, routers, instances, path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop; requests in flight are recorded as cancelled."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop may just have ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(STOP_S)

    def finish(self) -> ReplayFacts:
        """Return the measurements. Raise the error that ended the replay, such as OSError if a record could not be
        written."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.facts

    def _run(self) -> None:
        began, cpu, machine = time.perf_counter(), time.thread_time(), _machine_cpu()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        self.facts.wall_s = time.perf_counter() - began
        self.facts.client_cpu_s = time.thread_time() - cpu
        self.facts.machine_busy = _busy_between(machine, _machine_cpu())

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        appender = Appender(self._path)
        lags: list[float] = []
        watch = asyncio.create_task(_watch_lag(self._instances, lags))
        try:
            await play(self._load, self._routers, appender.append, self.progress)
        finally:
            watch.cancel()
            appender.close()
            self.facts.sim_lag_p99_s = stats.quantile_of(lags, 0.99)


async def _watch_lag(urls: Sequence[str], lags: list[float]) -> None:
    """Collect each engine's clock lag every LAG_EVERY_S."""
    clients = [ReplayClient(url, connect_timeout_s=1.0) for url in urls]
    while True:
        await asyncio.sleep(LAG_EVERY_S)
        for client in clients:
            with contextlib.suppress(NoAnswer, TimeoutError, ValueError):
                page = await client.request("GET", "/metrics", keep=PAGE_BYTES, timeout_s=1.0)
                lags += lag_in(bytes(page.tail))


def lag_in(page: bytes) -> list[float]:
    """Return the values of the lag gauge in a metrics page."""
    return [float(line.rsplit(b" ", 1)[1]) for line in page.split(b"\n") if line.startswith(LAG_GAUGE)]


def _machine_cpu() -> tuple[float, float] | None:
    """Return (busy, all) jiffies since boot; None without /proc."""
    try:
        numbers = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def _busy_between(first: tuple[float, float] | None, last: tuple[float, float] | None) -> float | None:
    if first is None or last is None or last[1] <= first[1]:
        return None
    return (last[0] - first[0]) / (last[1] - first[1])
