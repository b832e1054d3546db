"""Queries the Prometheus at WEIR_PROMETHEUS_URL. The address is a setting and never part of a plan, so nobody can make
the server fetch something else."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import orjson
from django.conf import settings

from controlplane.traffic.deliveries.judge.prometheus import QueryResult, QueryResults, answer, expanded
from controlplane.traffic.deliveries.plan.types import Plan, PrometheusGuard
from router.contract.net import pinned_http
from router.contract.net.addresses import ENGINES
from router.contract.problem import Problem

TIMEOUT_S = 3.0
AT_ONCE = 10
LARGEST = 256 * 1024  # bytes of an answer; one with a single number has a few hundred


def ask(plan: Plan, policy: str, candidate: int, step_s: float) -> QueryResults:
    """Send every query of the plan for each of its pools, concurrently."""
    asked = {
        (pool, guard.query): expanded(guard.query, _values(pool, policy, candidate, step_s))
        for pool in plan.pools
        for guard in plan.guards
        if isinstance(guard, PrometheusGuard)
    }
    if not asked:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(asked)), thread_name_prefix="prometheus") as threads:
        return dict(zip(asked, threads.map(_query, asked.values()), strict=True))


def problems(plan: Plan, policy: str, candidate: int) -> list[Problem]:
    """Why queries of a plan cannot be judged. No data is no problem: the candidate has no requests yet."""
    queries = {guard.query: n for n, guard in enumerate(plan.guards) if isinstance(guard, PrometheusGuard)}
    errors = {query: result.error for (_, query), result in ask(plan, policy, candidate, 1).items() if result.error}
    return [Problem(f"guards[{queries[query]}].query", query, error) for query, error in errors.items()]


def _values(pool: str, policy: str, candidate: int, step_s: float) -> dict[str, str]:
    return {"pool": pool, "policy": policy, "candidate": str(candidate), "step_s": str(max(1, round(step_s)))}


def _query(query: str) -> QueryResult:
    if not settings.PROMETHEUS_URL:
        return QueryResult(error="WEIR_PROMETHEUS_URL is not set")
    headers = {"authorization": f"Bearer {settings.PROMETHEUS_TOKEN}"} if settings.PROMETHEUS_TOKEN else {}
    form = {"query": query, "timeout": f"{TIMEOUT_S:g}s"}
    try:
        url = f"{settings.PROMETHEUS_URL}/api/v1/query"
        response = asyncio.run(pinned_http.ask("POST", url, ENGINES, TIMEOUT_S, LARGEST, data=form, headers=headers))
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
