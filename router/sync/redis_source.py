"""Pools, policies and sessions from Redis, shared with other routers; writes receipts and loads to Redis."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterable

from prometheus_client.core import Metric

from router.contract.values.json_value import JsonObject
from router.metrics import of_redis
from router.serving.pools import Pools
from router.serving.prompt.sessions import Sessions
from router.serving.stored import StoredResponses
from router.sync import delivery_reports, response_directory, use_reports
from router.sync.live_state import LiveState
from router.sync.peers import RouterPeers
from router.sync.redis_link import FAILURES, RedisLink
from router.sync.reporter import FLUSH_S, REPORT_S, Reporter
from router.sync.response_directory import ResponseDirectory
from router.sync.session_directory import TAKE_UP_S, SessionDirectory
from router.sync.token_bucket_store import RedisBudgets, TokenBucketStore
from router.telemetry.recorder import Recorder

FIRST_POLL_S = 2.0


class RedisSource:
    def __init__(self, redis_url: str, router_id: str, url: str) -> None:
        self.id = router_id
        self.pools = Pools()
        self.recorder = Recorder()
        self.link = RedisLink(redis_url)
        self.live = LiveState(self.link, self.pools, router_id)
        self.reporter = Reporter(router_id, url, self.link, self.live, self.pools, self.recorder)
        self.peers = RouterPeers(self.link, self.pools, router_id)
        self.pools.auth.bucket_store = TokenBucketStore(self.link, self.peers)
        name = f"{router_id}.{self.reporter.life}"
        self.pools.auth.budgets.store = RedisBudgets(self.link, name, self.peers)
        self.directory = SessionDirectory(self.link, self.pools, self.peers)
        self.sessions = Sessions(self.directory)
        self.response_directory = ResponseDirectory(self.link)
        self.responses = StoredResponses(self.pools, self.response_directory)

    @property
    def looked_at(self) -> float | None:
        return self.live.polled_at

    @property
    def routers(self) -> int:
        return 1 + len(self.peers)

    async def start(self) -> None:
        try:
            async with asyncio.timeout(FIRST_POLL_S):
                await self.live.poll()
                await self.live.samples()
        except FAILURES as error:
            self.link.failed(error)

    def tasks(self) -> list[Awaitable[None]]:
        return [
            *self.live.tasks(),
            *self.peers.tasks(),
            self.link.every(TAKE_UP_S, self.directory.take_up),
            self.link.every(REPORT_S, self.reporter.report),
            self.link.every(FLUSH_S, self.reporter.flush),
            self.link.every(response_directory.WRITE_S, self.response_directory.write),
            self.link.every(delivery_reports.WRITE_S, self.reporter.deliveries.write),
            self.link.every(use_reports.WRITE_S, self.reporter.use.write),
        ]

    def end(self) -> None:
        self.link.stopping.set()

    async def leave(self) -> None:
        with contextlib.suppress(*FAILURES):
            await self.pools.auth.budgets.report(time.time())
            await self.response_directory.write()
            await self.peers.leave()
            await self.reporter.leave()
        await self.link.close()

    def degraded(self) -> list[str]:
        return self.live.degraded()

    def health(self) -> JsonObject:
        return {"redis": self.link.up, "unreadable": self.live.unreadable}

    def metrics(self) -> Iterable[Metric]:
        return of_redis(self.live, self.recorder, self.peers)

    def page(self, path: str, client: str) -> bytes | None:
        return None
