"""The ephemeral pool of a run: configured like the pool under test, started with cold caches, served by the live
routers."""

import asyncio
import json
import time
from typing import Any

import httpx

from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Arm, Experiment, Run
from controlplane.evidence.experiments.modes.run_inputs import CONTEXT_TOKENS, NO_RECORD, RunFailed
from controlplane.evidence.experiments.replay.prompts import WORD_BYTES, text_of
from controlplane.evidence.experiments.start import fleets
from controlplane.traffic.policies import publication
from fleet import selectors, services
from fleet.jobs import Heartbeat
from fleet.kinds import KINDS
from fleet.kinds.data_parallel import endpoints
from fleet.models import Instance, Pool, State
from fleet.redis import connect, live_routers, values_of
from fleet.tries import tries
from router.contract.net.pinned_http import EngineTransport
from router.contract.pools import of_experiment
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue, PolicyValue
from router.contract.redis.router_status import RouterStatus

READY_S = 120.0
READY_REAL_S = 1_800.0  # time limit for a real engine, which loads its weights first
ROUTERS_S = 20.0
GONE_S = 30.0
TRIES = 3  # failed starts of one instance after which the run fails
SAMPLE_TOKENS = 2_000
LARGEST = 16 * 1024 * 1024  # largest answer of an engine, bytes
MOST_CONTEXT_TOKENS = 100_000_000
NO_ANSWER = (OSError, httpx.HTTPError, ValueError)  # The engine is unreachable, or its answer is not HTTP or JSON


def set_up(run: Run, experiment: Experiment, arm: Arm, heartbeat: Heartbeat) -> Pool:
    """Start the pool and publish the arm's policy. Return once the routers can send requests to the pool."""
    kept = provenance.fleet_of(experiment, arm.name)
    if kept is None:
        raise RunFailed(NO_RECORD)
    like = fleets.pool_of(kept)
    _wait_for_earlier(run, heartbeat)
    heartbeat.beat(step="starting the pool")
    scale = KINDS[like.kind].time_scale_option
    overrides = {scale: experiment.time_scale} if scale else {}
    try:
        pool = services.create_ephemeral_pool(
            run.pool_name, like, replicas=None, engine_overrides=overrides, owner=owner_of(run)
        )
    except services.FleetError as error:
        raise RunFailed(str(error)) from None
    put_policy(run, arm)
    _wait_for_instances(pool, heartbeat)
    _wait_for_routers(pool, arm.published_version, heartbeat)
    return pool


def put_policy(run: Run, arm: Arm) -> None:
    """Publish the arm's policy; publish it again if Redis has lost it."""
    value = PolicyValue(
        pool=run.pool_name,
        policy=arm.policy or arm.strategy,
        version=arm.published_version,
        sha256=arm.sha256,
        document=arm.document,
    )
    publication.publish_ephemeral(value)


def keep_policy(run: Run, arm: Arm) -> None:
    if run.pool_name not in publication.published([run.pool_name]):
        put_policy(run, arm)


def tear_down(pool_name: str) -> None:
    """Remove the pool and its policy, if they exist."""
    services.delete_ephemeral_pool(pool_name)
    publication.remove_ephemeral(pool_name)


def _wait_for_earlier(run: Run, heartbeat: Heartbeat) -> None:
    """Wait until earlier ephemeral pools are removed, because two at the same time would share the machine."""
    end = time.monotonic() + GONE_S
    earlier = Pool.objects.exclude(ephemeral_owner="").filter(name__startswith=of_experiment(run.experiment_id))
    while earlier.exclude(name=run.pool_name).exists() and time.monotonic() < end:
        heartbeat.beat(step="waiting for the previous pool to end")
        time.sleep(0.2)


def _wait_for_instances(pool: Pool, heartbeat: Heartbeat) -> None:
    limit = READY_S if KINDS[pool.kind].simulated else READY_REAL_S
    end = time.monotonic() + limit
    while True:
        ready, wanted = selectors.pool_ready(pool.name)
        if wanted and ready >= wanted:
            return
        _fail_if_it_cannot_start(pool)
        if time.monotonic() > end:
            raise RunFailed(f"{ready} of {wanted} instances were ready after {limit:g} s", _log(_unready(pool)))
        heartbeat.beat(step=f"waiting for instances, {ready} of {wanted} ready")
        time.sleep(0.2)


def _unready(pool: Pool) -> Instance | None:
    return pool.instances.exclude(state=State.READY).first()


def _fail_if_it_cannot_start(pool: Pool) -> None:
    failed = pool.instances.filter(state=State.FAILED, failures__gte=TRIES).first()
    if failed is not None:
        raise RunFailed(f"{failed.name} does not start: {failed.reason}", _log(failed))


def _log(instance: Instance | None) -> str:
    return "\n".join(selectors.last_log_lines(instance, 30)) if instance is not None else ""


def _wait_for_routers(pool: Pool, version: int, heartbeat: Heartbeat) -> None:
    """Wait until every live router runs the arm's version and knows the instances."""
    end = time.monotonic() + ROUTERS_S
    while True:
        names = live_routers()
        behind = [name for name in names if not _has_taken_up(name, pool.name, version)]
        if names and not behind:
            return
        if time.monotonic() > end:
            reason = f"{', '.join(behind)} did not take it up" if names else "no router is running"
            raise RunFailed(f"the pool is ready, but after {ROUTERS_S:g} s {reason}")
        heartbeat.beat(step="waiting for the routers")
        time.sleep(0.1)


def _has_taken_up(router: str, pool: str, version: int) -> bool:
    status = codec.decode(RouterStatus, connect().get(redis_keys.router_key(router)))
    fleet = codec.decode(FleetValue, connect().get(redis_keys.fleet_key(pool)))
    served = status.pools.get(pool) if status is not None else None
    if served is None or fleet is None:
        return False
    return served.version == version and (served.fleet_at or 0.0) >= fleet.at


def router_urls() -> list[str]:
    """Return the URLs of the live routers, from their status in Redis."""
    statuses = values_of(RouterStatus, redis_keys.router_key, live_routers())
    return [status.url for status in statuses.values() if status.url]


def context_tokens(pool: Pool) -> int:
    """Return the model's context window as reported by its engine, or else CONTEXT_TOKENS."""
    try:
        listed = _json_of(_first(pool), "/v1/models", timeout_s=10)["data"]
        window = int(listed[0].get("max_model_len") or CONTEXT_TOKENS)
        return window if 0 < window <= MOST_CONTEXT_TOKENS else CONTEXT_TOKENS
    except (*NO_ANSWER, LookupError, TypeError, AttributeError, OverflowError):
        return CONTEXT_TOKENS


def bytes_per_token(pool: Pool) -> float:
    """Return the bytes per token, stated by the kind or measured with the engine's tokenizer."""
    known = KINDS[pool.kind].bytes_per_token
    if known is not None:
        return known
    sample = text_of("sample", SAMPLE_TOKENS * WORD_BYTES).decode()
    try:
        answer = _json_of(_first(pool), "/tokenize", {"model": pool.model, "prompt": sample}, timeout_s=30)
        count = int(answer["count"])
        if not 0 < count <= len(sample):
            raise ValueError(f"count is {count}; allowed: 1 to {len(sample)}")
        return len(sample) / count
    except (*NO_ANSWER, LookupError, TypeError, OverflowError):
        raise RunFailed("the engine's /tokenize did not answer: prompts cannot be made to length") from None


def _json_of(instance: Instance, path: str, body: Any = None, *, timeout_s: float) -> Any:
    """Return the JSON answer of an engine. Raise an error of NO_ANSWER."""
    return json.loads(asyncio.run(_answer_of(instance, path, body, timeout_s)))


async def _answer_of(instance: Instance, path: str, body: Any, timeout_s: float) -> bytes:
    """Return the body; above LARGEST it is cut off and therefore no longer JSON. Redirects are not followed."""
    found, transport = bytearray(), EngineTransport(instance.url, instance.engine_key, certificates=instance.tls)
    async with (
        asyncio.timeout(timeout_s),
        httpx.AsyncClient(transport=transport, timeout=timeout_s) as client,
        client.stream("GET" if body is None else "POST", instance.url + path, json=body) as answer,
    ):
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            found += part
            if len(found) > LARGEST:
                break
    return bytes(found[:LARGEST])


def _first(pool: Pool) -> Instance:
    instance = pool.instances.select_related("pool").filter(state=State.READY).exclude(url="").first()
    if instance is None:
        raise RunFailed("no instance is ready")
    return instance


def endpoint_names(pool: Pool) -> list[str]:
    """Return the endpoints' names in answers: each data-parallel rank has its own."""
    rows = pool.instances.order_by("ordinal")
    return [name for row in rows for name in endpoints(row.name, row.facts.dp)]


def instance_urls(pool: Pool) -> list[str]:
    return list(pool.instances.exclude(url="").order_by("ordinal").values_list("url", flat=True))


def owner_of(run: Run) -> str:
    """Return the owner that marks a run's pool."""
    return f"run {run.pk}"


def remove_abandoned() -> None:
    """Remove the pools of ended runs whose worker was lost before it could remove them."""
    with tries() as attempt:
        for pool in Pool.objects.exclude(ephemeral_owner="").filter(removed=False):
            with attempt(f"pool {pool.name}"):
                if _is_abandoned(pool):
                    tear_down(pool.name)


def _is_abandoned(pool: Pool) -> bool:
    """Return whether the pool's run has ended or does not exist."""
    kind, _, number = pool.ephemeral_owner.partition(" ")
    if kind != "run" or not number.isdigit():
        return False
    return not Run.objects.filter(pk=int(number), ended_at=None).exists()
