"""Puts engines to sleep and wakes them, through vLLM's endpoints.

Level 1 keeps the weights in host memory. Level 2 discards them: they must be reloaded while the KV cache still sleeps,
or vLLM would answer from random memory without an error. An engine counts as awake once it says so and has computed a
token.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import httpx

from fleet import events
from fleet.control.publish import publish_fleet
from fleet.models import Instance, State
from router.contract.net.pinned_http import EngineTransport

TIMEOUT_S = 600.0  # limit for one call: weights are read from disk or moved between GPU and host
LARGEST = 4096  # bytes of an answer
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SleepStep:
    path: str
    body: Json | None = None
    asks: bool = False  # True for a GET, False for a POST
    says: str = ""  # text that the answer must contain


class SleepRefused(Exception):
    """The engine refused; the message has its answer."""


ASLEEP = SleepStep("/is_sleeping", asks=True, says='{"is_sleeping":true}')
AWAKE = SleepStep("/is_sleeping", asks=True, says='{"is_sleeping":false}')
EMPTY = SleepStep("/reset_prefix_cache")  # drops the prefix cache, which is invalid after waking
WAKE = {
    1: (SleepStep("/wake_up"),),
    2: (
        SleepStep("/wake_up?tags=weights"),
        SleepStep("/collective_rpc", {"method": "reload_weights"}),
        SleepStep("/wake_up?tags=kv_cache"),
    ),
}

_under_way: set[int] = set()  # keys of rows with an order under way; all orders of a node come to this process
_lock = Lock()


def sleep_instance(name: str, epoch: int) -> bool:
    """Put the instance to sleep. False if the order is void or the engine refuses; its history says why."""
    instance = _found(name, epoch, "asleep")
    if instance is None:
        return False
    level = instance.sleep_level
    return _done(instance, (SleepStep(f"/sleep?level={level}"), ASLEEP)) and _note(
        instance, level, f"asleep (level {level})"
    )


def wake_instance(name: str, epoch: int) -> bool:
    """Wake the instance, as `sleep_instance` puts it to sleep. The next order restarts a failed attempt."""
    instance = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, asleep__isnull=False).first()
    if instance is None:
        return False
    token = SleepStep("/v1/completions", {"model": instance.pool.model, "prompt": "a", "max_tokens": 1})
    steps = (*WAKE.get(instance.asleep or 1, WAKE[2]), EMPTY, AWAKE, token)
    return _done(instance, steps) and _note(instance, None, "awake again")


def _found(name: str, epoch: int, desired: str) -> Instance | None:
    rows = Instance.objects.select_related("pool")
    return rows.filter(name=name, epoch=epoch, state=State.DRAINING, desired=desired).first()


def _done(instance: Instance, steps: Sequence[SleepStep]) -> bool:
    """Take the steps in order until one fails. Weights must not be reloaded under requests, so an order that arrives
    during another one is void."""
    with _lock:
        if instance.pk in _under_way:
            return False
        _under_way.add(instance.pk)
    try:
        asyncio.run(_take(instance, steps))
    except SleepRefused as refused:
        events.record(instance, "refused", str(refused))
        return False
    finally:
        _under_way.discard(instance.pk)
    return True


async def _take(instance: Instance, steps: Sequence[SleepStep]) -> None:
    url, transport = instance.url, EngineTransport(instance.url, instance.engine_key, certificates=instance.tls)
    async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S) as client:
        for step in steps:
            if why := await _problem(client, url, step):
                raise SleepRefused(f"{'GET' if step.asks else 'POST'} {step.path}: {why}")


async def _problem(client: httpx.AsyncClient, url: str, step: SleepStep) -> str:
    """Return why the step failed; empty if it did not. The time limit covers the whole answer, which may arrive byte by
    byte."""
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            client.stream("GET" if step.asks else "POST", url + step.path, json=step.body) as answer,
        ):
            said = await _beginning(answer)
    except (TimeoutError, httpx.TimeoutException):
        return f"no answer within {TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if not 200 <= answer.status_code < 300:
        return f"the engine answers {answer.status_code}"
    same = step.says in said.replace(" ", "")
    return "" if same else f"the engine says {said[:100]}"


async def _beginning(answer: httpx.Response) -> str:
    said = b""
    async for part in answer.aiter_bytes():
        said += part
        if len(said) > LARGEST:
            break
    return said[:LARGEST].decode("utf-8", "replace")


def _note(instance: Instance, level: int | None, text: str) -> bool:
    same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.DRAINING)
    if not same.update(asleep=level, reason=text, ordered_at=None):
        return False
    events.record(instance, "asleep" if level is not None else "awake", text)
    publish_fleet(instance.pool.name)
    return True
