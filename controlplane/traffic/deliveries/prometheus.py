"""Queries the Prometheus at WEIR_PROMETHEUS_URL. The address is a setting and never part of a plan, so nobody can make
the server fetch something else."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

import httpx
import orjson
from django.conf import settings

from controlplane.traffic.deliveries.judge.prometheus import QueryResult, QueryResults, answer, expanded
from controlplane.traffic.deliveries.plan.types import Plan, PrometheusGuard
from router.contract.net import pinned_http
from router.contract.net.addresses import ENGINES
from router.contract.values.problem import Problem

TIMEOUT_S = 3.0
LONGEST_S = 5.0  # limit for the queries of all deliveries together
AT_ONCE = 10
LARGEST = 256 * 1024  # largest answer, bytes; one number takes a few hundred


Queries = Mapping[tuple[str, str], str]  # by pool and the guard's query: the query with its variables filled in


def queries(plan: Plan, policy: str, candidate: int, step_s: float) -> Queries:
    """Return every query of the plan, for each of its pools."""
    return {
        (pool, guard.query): expanded(guard.query, _values(pool, policy, candidate, step_s))
        for pool in plan.pools
        for guard in plan.guards
        if isinstance(guard, PrometheusGuard)
    }


def ask(*asked: Queries) -> list[QueryResults]:
    """Return the answers to the queries of each delivery. The queries run concurrently, and deliveries take turns."""
    return asyncio.run(_ask(asked)) if any(asked) else [{} for _ in asked]


async def _ask(asked: Sequence[Queries]) -> list[QueryResults]:
    late = QueryResult(error=f"no answer within {LONGEST_S:g} s to all queries of open deliveries")
    found = [dict.fromkeys(each, late) for each in asked]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(into: dict[tuple[str, str], QueryResult], key: tuple[str, str], query: str) -> None:
        async with room:
            into[key] = await _query(query)

    rounds = itertools.zip_longest(
        *([(into, *item) for item in of.items()] for into, of in zip(found, asked, strict=True))
    )
    tasks = [asyncio.create_task(one(*item)) for each in rounds for item in each if item]
    await asyncio.wait(tasks, timeout=LONGEST_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return list(found)


def problems(plan: Plan, policy: str, candidate: int) -> list[Problem]:
    """Return why queries of a plan cannot be judged. An empty result is no problem, because the candidate has no
    requests yet."""
    numbers = {guard.query: n for n, guard in enumerate(plan.guards) if isinstance(guard, PrometheusGuard)}
    (found,) = ask(queries(plan, policy, candidate, 1))
    errors = {query: result.error for (_, query), result in found.items() if result.error}
    return [Problem(f"guards[{numbers[query]}].query", query, error) for query, error in errors.items()]


def _values(pool: str, policy: str, candidate: int, step_s: float) -> dict[str, str]:
    return {"pool": pool, "policy": policy, "candidate": str(candidate), "step_s": str(max(1, round(step_s)))}


async def _query(query: str) -> QueryResult:
    if not settings.PROMETHEUS_URL:
        return QueryResult(error="WEIR_PROMETHEUS_URL is not set")
    headers = {"authorization": f"Bearer {settings.PROMETHEUS_TOKEN}"} if settings.PROMETHEUS_TOKEN else {}
    form = {"query": query, "timeout": f"{TIMEOUT_S:g}s"}
    try:
        url = f"{settings.PROMETHEUS_URL}/api/v1/query"
        response = await pinned_http.ask("POST", url, ENGINES, TIMEOUT_S, LARGEST, data=form, headers=headers)
    except (TimeoutError, httpx.TimeoutException):
        return QueryResult(error=f"no answer within {TIMEOUT_S:g} s")
    except httpx.HTTPError as error:
        return QueryResult(error=str(error) or type(error).__name__)
    return _read(response.status, response.body)


def _read(status: int, raw: bytes) -> QueryResult:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if status != 200:
        why = body.get("error") if isinstance(body, dict) else ""
        return QueryResult(error=f"HTTP {status}{f': {str(why)[:200]}' if why else ''}")
    return answer(body)
