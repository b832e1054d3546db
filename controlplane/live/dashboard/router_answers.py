"""Asks whether routers that stopped reporting still answer: Redis or a busy machine may hold up their reports."""

import asyncio
from collections.abc import Iterable

import httpx

from controlplane.live.dashboard.frame.types import RouterAnswer
from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedTransport
from router.contract.redis.router_status import RouterStatus
from router.contract.redis.staleness import ROUTER_GONE_S

ANSWER_S = 0.5
ASKED = 4  # most routers asked, those that reported last


def router_answers(now: float, routers: Iterable[RouterStatus]) -> list[RouterAnswer]:
    """Ask routers; empty while one reports, as then none is asked. Blocks for at most `ANSWER_S`."""
    latest = sorted(routers, key=lambda router: -router.at)[:ASKED]
    if not latest or now - latest[0].at <= ROUTER_GONE_S:
        return []
    return asyncio.run(_answers([router.url for router in latest]))


async def _answers(urls: Iterable[str]) -> list[RouterAnswer]:
    return list(await asyncio.gather(*map(_answer, urls)))


async def _answer(url: str) -> RouterAnswer:
    """Ask one router. Any status is an answer: a router that cannot serve says why itself."""
    try:
        async with asyncio.timeout(ANSWER_S), httpx.AsyncClient(transport=PinnedTransport(ENGINES)) as client:
            await client.get(f"{url}/healthz")
    except (TimeoutError, httpx.TimeoutException):
        return "no answer"
    except (httpx.HTTPError, httpx.InvalidURL):
        return "refused"
    return "answered"
