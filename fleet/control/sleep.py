"""Sleep and wake-up of an engine over vLLM's endpoints: POST /sleep?level=N and /wake_up."""

import asyncio

import httpx

from fleet import events
from fleet.control.publish import publish_fleet
from fleet.models import Instance, State
from router.contract.addresses import ENGINES
from router.contract.pinned_http import PinnedTransport

TIMEOUT_S = 120.0  # in all; weights move between GPU and host


def sleep_instance(name: str, epoch: int) -> bool:
    """False when the order is void or the engine refuses; its history says why."""
    instance = _found(name, epoch, "asleep")
    if instance is None:
        return False
    level = instance.sleep_level
    return _post(instance, f"/sleep?level={level}") and _note(instance, level, f"asleep (level {level})")


def wake_instance(name: str, epoch: int) -> bool:
    instance = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, asleep__isnull=False).first()
    if instance is None:
        return False
    return _post(instance, "/wake_up") and _note(instance, None, "awake again")


def _found(name: str, epoch: int, desired: str) -> Instance | None:
    rows = Instance.objects.select_related("pool")
    return rows.filter(name=name, epoch=epoch, state=State.DRAINING, desired=desired).first()


def _post(instance: Instance, path: str) -> bool:
    try:
        status = asyncio.run(_status(instance.url + path))
        why = "" if 200 <= status < 300 else f"the engine answers {status}"
    except (TimeoutError, httpx.TimeoutException):
        why = f"no answer within {TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
    if why:
        events.record(instance, "refused", f"POST {path}: {why}")
    return not why


async def _status(url: str) -> int:
    """The limit is for the whole head, which an engine may send a byte at a time; a body is not read."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        httpx.AsyncClient(transport=PinnedTransport(ENGINES), timeout=TIMEOUT_S) as client,
        client.stream("POST", url) as answer,
    ):
        return answer.status_code


def _note(instance: Instance, level: int | None, text: str) -> bool:
    same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.DRAINING)
    if not same.update(asleep=level, reason=text, ordered_at=None):
        return False
    events.record(instance, "asleep" if level is not None else "awake", text)
    publish_fleet(instance.pool.name)
    return True
