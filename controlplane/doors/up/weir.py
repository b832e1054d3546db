"""The part of `up` other than processes: the database, the fleet, the engines, and the lines it prints."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import django
from django.apps import apps
from django.conf import settings

from controlplane.base.process.patience import OutOfPatience, Patience
from controlplane.doors.up.console import block, say
from controlplane.doors.up.plan import DEMO_POOL, Options, url
from fleet.node import process

FLEET_IDLE_S = 60.0


@dataclass
class Weir:
    options: Options
    password: str = ""  # administrator's password, if this start created it
    held: sqlite3.Connection | None = None  # held open until this process ends, see migrated.hold_open

    async def prepare(self) -> None:
        """Bring database, administrator, policy and fleet up to date. Raise CannotStart if the database refuses."""
        self.password, self.held = await asyncio.to_thread(_prepare, self.options)

    async def announce(self) -> None:
        home, models = (url(self.options.host, port) for port in (self.options.web_port, self.options.router_port))
        served = await asyncio.to_thread(_served_model)
        password = f"  password {self.password}  (shown this once)" if self.password else ""
        block(
            f"\nWeir is up after {took()}\n"
            f"  page     {home}/live\n"
            f"  sign in  admin{password}\n"
            f"  models   {models}/v1\n"
            f"  {first_step(models, served)}\n"
            f'  API      curl -H "authorization: Bearer $(cat {settings.DATA_DIR}/token)" {home}/api/v1/fleet\n'
            f"  logs     {settings.DATA_DIR}/logs\n"
            "  Ctrl-C stops everything, the engines too\n"
        )

    async def fleet_is_ready(self) -> bool:
        """Return whether there is a demo pool; wait for its instances as long as more of them become ready."""
        ready, wanted = await self._fleet()
        if wanted:
            say("fleet", f"{ready}/{wanted} instances of pool {DEMO_POOL} are ready after {took()}")
        return wanted > 0

    async def _fleet(self) -> tuple[int, int]:
        patience = Patience(time.monotonic(), FLEET_IDLE_S)
        with contextlib.suppress(OutOfPatience):
            while (state := await asyncio.to_thread(_demo_pool)) is None or state[0] < state[1]:
                if patience.look(state, time.monotonic()):
                    say("fleet", "{}/{} instances are ready, waiting for the others".format(*state or (0, "?")))
                await asyncio.sleep(0.25)
        return state or (0, 0)

    async def stop_engines(self) -> None:
        """Stop the engines but keep their desired state, so that the next `up` starts them again."""
        await asyncio.to_thread(_stop_engines)


def kill_engines() -> None:
    """Kill the engines at once and without the database: engines carry Weir's data folder in their environment."""
    for pid, started in process.find({"WEIR_FLEET": str(settings.DATA_DIR)}):
        process.send(pid, started, signal.SIGKILL)


def check_fleet(path: Path) -> None:
    """Raise CannotStart if the document cannot be applied."""
    _load()
    from controlplane.doors.up import database

    database.check_fleet(path)


def first_step(models: str, served: str) -> str:
    """Suggest a request to a served model, or how to serve something."""
    if not served:
        return "serve    Fleet → Adopt takes engines that run, New pool starts some; weir fleet discover looks first"
    request = demo_request(served)
    return f"ask      curl -N {models}/v1/chat/completions -H 'content-type: application/json' -d '{request}'"


def demo_request(model: str) -> str:
    messages = [{"role": "user", "content": "What is a weir?"}]
    body = {"model": model, "stream": True, "max_tokens": 20, "messages": messages}
    return json.dumps(body, separators=(",", ":"))


def took() -> str:
    """Return, as text, the time since this process was started, including the imports."""
    state = process.inspect(os.getpid())
    return f"{time.clock_gettime(time.CLOCK_BOOTTIME) - state.started:.1f} s" if state else "?"


def quiet() -> None:
    """Silence logs, as the console belongs to the lines of console.py."""
    logging.getLogger().setLevel(logging.WARNING)


# Each function below runs in a thread. The first one loads Django's applications, which takes half a second of CPU
# time; meanwhile the servers start.


def _load() -> None:
    if not apps.ready:
        django.setup()
        quiet()


def _prepare(options: Options) -> tuple[str, sqlite3.Connection | None]:
    _load()
    from controlplane.base.process import migrated
    from controlplane.doors.up import database

    return database.prepare(options), migrated.hold_open()


def _served_model() -> str:
    from controlplane.doors.up import database

    return database.served_model()


def _demo_pool() -> tuple[int, int] | None:
    from controlplane.doors.up import database

    return database.ready_instances(DEMO_POOL)


def _stop_engines() -> None:
    _load()
    from controlplane.doors.up import database

    try:
        database.stop_engines()
    finally:
        kill_engines()  # engines that a launcher started but could not record
