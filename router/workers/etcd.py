"""What is registered under /workers/<role>/<host>/<port> in one etcd, read over its JSON gateway every LOOK_S.

Read again and again rather than watched: a key whose lease ended is missed after half a second, an etcd that hangs is
noticed as soon as one that refuses, and there is no stream whose silence could mean either.
"""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.contract.redis.published import InstanceRole

if TYPE_CHECKING:
    import httpx

LOOK_S = 0.5
ANSWER_S = 2.0
PREFIX = "/workers/"
ROLES: tuple[InstanceRole, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Worker:
    role: InstanceRole
    address: str  # host:port of its API
    epoch: int  # etcd's revision of the registration: another life has another one


class Registry:
    def __init__(self, url: str, changed: Callable[[], None]) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self.found: Mapping[str, Worker] | None = None  # by address; None until it has answered once
        self.lost_at: float | None = None  # s, Unix; while it does not answer
        self.why = ""
        self._changed = changed

    def trouble(self, now: float) -> str:
        """In words; empty while it answers."""
        if self.lost_at is None:
            return ""
        kept = "the last known workers stay" if self.found is not None else "none of its workers is known"
        return f"etcd at {self.url} has not answered for {now - self.lost_at:.0f} s ({self.why}): {kept}"

    async def run(self) -> None:
        """Until cancelled."""
        import httpx  # only where an etcd is named: it is a quarter of what a router imports

        async with httpx.AsyncClient(base_url=self.url, timeout=ANSWER_S) as client:
            while True:
                await self.look(client)
                await asyncio.sleep(LOOK_S)

    async def look(self, client: "httpx.AsyncClient") -> None:
        import httpx

        try:
            answer = await client.post("/v3/kv/range", json=_EVERYTHING)
            answer.raise_for_status()
            found = workers(answer.json())
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self.lost_at = self.lost_at or time.time()
            self.why = str(error) or type(error).__name__
            return
        self.lost_at = None
        if found != self.found:
            self.found = found
            self._changed()


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# All keys from the prefix to the next one that does not begin with it
_EVERYTHING = {"key": _coded(PREFIX), "range_end": _coded(PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1))}


def workers(answer: Mapping[str, Any]) -> dict[str, Worker]:
    """By address, of a range's answer; keys of another shape are somebody else's. Pure."""
    found = {}
    for pair in answer.get("kvs", ()):
        parts = base64.b64decode(pair["key"]).decode("utf-8", "replace").removeprefix(PREFIX).split("/")
        if len(parts) == 3 and parts[0] in ROLES and parts[2].isdigit():
            address = f"{parts[1]}:{parts[2]}"
            found[address] = Worker(parts[0], address, int(pair["create_revision"]))
    return found
