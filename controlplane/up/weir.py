"""What bringing up Weir means besides its processes: database, first administrator, fleet, and what it prints."""

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.utils import DatabaseError

from controlplane.accounts.services import ensure_admin
from controlplane.policies.services import ensure_default_policy
from controlplane.up import CannotStart
from controlplane.up.console import block, say
from controlplane.up.plan import Options, url
from fleet import selectors, services
from fleet.kinds import KINDS
from fleet.node import process
from fleet.spec import document, fleet_spec

DEMO_FLEET = Path("examples/fleet-demo.yaml")
DEMO_POOL = "demo"
DEMO_MODEL = "llama-3.1-8b"
FLEET_PATIENCE_S = 60.0


@dataclass
class Weir:
    options: Options
    password: str = ""  # of admin, when this start made it

    async def prepare(self) -> None:
        """Bring database, administrator, policy and fleet up to date; CannotStart when the database refuses."""
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        try:
            call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
            self.password = ensure_admin().password or ""
            ensure_default_policy()
            self._apply_fleet()
        except (DatabaseError, OSError) as error:
            raise CannotStart(f"database {settings.DATABASES['default']['NAME']}: {error}") from error
        finally:
            connections.close_all()

    def _apply_fleet(self) -> None:
        chosen = self.options.fleet
        if chosen is None and self.options.demo and not selectors.pools().exists():
            chosen = DEMO_FLEET
        if chosen is not None:
            services.apply_fleet((settings.BASE_DIR / chosen).read_text(), actor="up")
            say("fleet", f"applied {chosen}")

    async def announce(self) -> None:
        home, models = (url(self.options.host, port) for port in (self.options.web_port, self.options.router_port))
        request = demo_request(await asyncio.to_thread(_a_model))
        password = f"  password {self.password}  (shown this once)" if self.password else ""
        block(
            f"\nWeir is up after {took()}\n"
            f"  page     {home}/live\n"
            f"  sign in  admin{password}\n"
            f"  models   {models}/v1\n"
            f"  ask      curl -N {models}/v1/chat/completions -H 'content-type: application/json' -d '{request}'\n"
            f'  API      curl -H "authorization: Bearer $(cat {settings.DATA_DIR}/token)" {home}/api/v1/fleet\n'
            f"  logs     {settings.DATA_DIR}/logs\n"
            "  Ctrl-C stops everything, the engines too\n"
        )

    async def fleet_is_ready(self) -> bool:
        """Whether there is a demo pool to send to; waits for its instances, but not for ever for the last of them."""
        end = time.monotonic() + FLEET_PATIENCE_S
        ready, wanted = await asyncio.to_thread(_demo_pool)
        while ready < wanted and time.monotonic() < end:
            await asyncio.sleep(0.25)
            ready, wanted = await asyncio.to_thread(_demo_pool)
        if wanted:
            say("fleet", f"{ready}/{wanted} instances of pool {DEMO_POOL} are ready after {took()}")
        return wanted > 0


def demo_request(model: str) -> str:
    messages = [{"role": "user", "content": "What is a weir?"}]
    body = {"model": model, "stream": True, "max_tokens": 20, "messages": messages}
    return json.dumps(body, separators=(",", ":"))


def _a_model() -> str:
    """That the fleet serves, for the request that is suggested."""
    try:
        serving = [kind.name for kind in KINDS.values() if kind.serves]
        first = selectors.pools().filter(kind__in=serving).first()
        return first.model if first else DEMO_MODEL
    finally:
        connections.close_all()


def took() -> str:
    """Since this process was started, the imports included."""
    state = process.inspect(os.getpid())
    return f"{time.clock_gettime(time.CLOCK_BOOTTIME) - state.started:.1f} s" if state else "?"


def check_fleet(path: Path) -> None:
    """CannotStart when the document cannot be applied."""
    try:
        fleet_spec.parse_fleet(document.load(path.read_text()))
    except (OSError, UnicodeDecodeError, document.UnreadableDocument, fleet_spec.InvalidFleet) as error:
        raise CannotStart(f"--fleet {path}: {' '.join(str(error).split())}") from None


def _demo_pool() -> tuple[int, int]:
    """(ready, wanted) instances of the demo pool."""
    try:
        return selectors.pool_ready(DEMO_POOL)
    finally:
        connections.close_all()
