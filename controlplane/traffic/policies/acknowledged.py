"""The routers' acknowledgements of a published version: waits for them, and reports the routers that run it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from fleet.redis import connect
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import PolicyAck

WAIT_S = 1.0  # wait for the routers' acknowledgements


@dataclass(frozen=True, slots=True)
class Ack:
    router: str
    ms: float  # time from writing the version to Redis until the router acknowledged it for every pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The routers that a publication has reached."""

    acks: tuple[Ack, ...] = ()
    missing: tuple[str, ...] = ()  # live routers that did not answer within a second
    pools: tuple[str, ...] = ()
    stored_only: bool = False  # True if Redis was unreachable; routers get the version once it is reachable again
    dry_run: bool = False

    @property
    def summary(self) -> str:
        """Describe the acknowledgements in one sentence."""
        if self.dry_run:
            return "would be published; nothing was changed"
        if self.stored_only:
            return "stored; routers will take it up when Redis is back"
        if not self.pools:
            return "no pool uses this policy yet"
        routers = len(self.acks) + len(self.missing)
        if not routers:
            return "no router is running; the first one to start will take it up"
        slowest = f", {max(ack.ms for ack in self.acks):.0f} ms" if self.acks else ""
        late = f"; not heard from {', '.join(self.missing)}" if self.missing else ""
        return f"{len(self.acks)}/{routers} routers{slowest}{late}"


class AckWaiter:
    """Collects acknowledgements; it subscribes before the version is published, so that none is missed."""

    def __init__(self) -> None:
        client: Any = connect()
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(redis_keys.ACKS)

    def close(self) -> None:
        self._pubsub.close()

    def wait(self, version: int, pools: Iterable[str], routers: Iterable[str], since: float) -> tuple[Ack, ...]:
        """Return the routers that acknowledged `version` for all pools: once all have, or WAIT_S after `since`
        (monotonic)."""
        missing = {router: set(pools) for router in routers}
        acks: list[Ack] = []
        while missing and (left := since + WAIT_S - time.monotonic()) > 0:
            message = self._pubsub.get_message(timeout=left)
            ack = codec.decode(PolicyAck, message["data"]) if message else None
            if ack is None or ack.version < version:  # No acknowledgement, or one from an earlier publication.
                continue
            waiting = missing.get(ack.router)
            if waiting is not None:
                waiting.discard(ack.pool)
                if not waiting:
                    del missing[ack.router]
                    acks.append(Ack(ack.router, round((time.monotonic() - since) * 1000, 1)))
        return tuple(acks)


def open_waiter() -> AckWaiter | None:
    """Return a waiter; None when Redis is unreachable."""
    try:
        return AckWaiter()
    except redis.RedisError:
        return None


@contextmanager
def subscribed() -> Iterator[AckWaiter | None]:
    waiter = open_waiter()
    try:
        yield waiter
    finally:
        if waiter is not None:
            waiter.close()


@dataclass(frozen=True, slots=True)
class RouterVersion:
    """The version of a pool's policy that is running on one live router."""

    router: str
    pool: str
    version: int | None  # None if the router does not serve the pool yet


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The number of routers that run a version."""

    running: tuple[RouterVersion, ...]
    behind: tuple[RouterVersion, ...]
    redis_away: bool = False

    @property
    def routers(self) -> int:
        return len({r.router for r in (*self.running, *self.behind)})

    @property
    def current(self) -> int:
        return len(self.up_to_date)

    @property
    def up_to_date(self) -> frozenset[str]:
        """Return the routers that run the version in all their pools."""
        return frozenset({r.router for r in self.running} - {r.router for r in self.behind})


def acknowledgement(number: int, running: Callable[[], Iterable[RouterVersion]]) -> Acknowledgement:
    """Return live routers by whether they run version `number`. `running` is the version of each router, by its last
    report.
    """
    try:
        rows = tuple(running())
    except redis.RedisError:
        return Acknowledgement((), (), redis_away=True)
    current = tuple(row for row in rows if row.version == number)
    return Acknowledgement(current, tuple(row for row in rows if row.version != number))
