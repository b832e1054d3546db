"""Puts engines to sleep and wakes them, through the API paths of their kind."""

import asyncio
from collections.abc import Sequence
from threading import Lock

import httpx

from fleet import events
from fleet.control.publish import publish_fleet
from fleet.kinds.vllm.sleeping import VLLM_SLEEP, Sleeping, SleepStep, Weights
from fleet.models import DesiredState, Instance, State
from router.contract.net.pinned_http import EngineTransport, ask_through

TIMEOUT_S = 600.0  # limit for one call, in which weights are read from disk or moved between GPU and host
LARGEST = 4096  # bytes of an answer


class SleepRefused(Exception):
    """The engine refused to sleep or wake; the message contains its answer."""

    may_have_acted = False  # whether the engine may have taken the step nevertheless


class NoAnswer(SleepRefused):
    may_have_acted = True


class HasFailed(SleepRefused):
    """The engine answers 5xx. If the step may be repeated, it counts as taken, since part of it may have been done."""


_under_way: set[int] = set()  # keys of rows with an order in progress; all orders of a node reach this process
_lock = Lock()
# (row key, epoch, True for waking) → steps of a failed attempt that are not repeated
_acted: dict[tuple[int, int, bool], int] = {}
_OUT = (State.DRAINING, State.UNREACHABLE)  # an engine may not answer probes while it falls asleep or wakes up


def sleep_instance(name: str, epoch: int) -> bool:
    """Put the instance to sleep. Return False if the order is void or the engine refuses; the instance's history has
    the reason."""
    instance = _found(name, epoch)
    if instance is None or not _begun(instance):
        return False
    level = instance.sleep_level
    sleeping = _sleeping(instance)
    if _done(instance, sleeping.sleep(level), repeats=sleeping.repeats):
        return _note(instance, level, f"asleep (level {level})")
    if _acted.get((instance.pk, epoch, False)) == 0:
        Instance.objects.filter(pk=instance.pk, epoch=epoch).update(asleep=None)
    return False


def wake_instance(name: str, epoch: int) -> bool:
    """Wake an instance that sleeps or may sleep. After a failed attempt, the next order starts over or continues."""
    instance = _found(name, epoch)
    if instance is None or instance.asleep is None:
        return False
    sleeping, weights = _sleeping(instance), Weights(instance.pool.model, instance.facts.tokenizer)
    steps = sleeping.wake(instance.asleep, weights)
    return _done(instance, steps, wakes=True, repeats=sleeping.repeats) and _note(instance, None, "awake again")


def _sleeping(instance: Instance) -> Sleeping:
    kind = instance.started_from.known_kind
    return kind.sleeping if kind is not None else VLLM_SLEEP


def _found(name: str, epoch: int) -> Instance | None:
    return Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.DRAINING).first()


def _begun(instance: Instance) -> bool:
    """Record, before the engine is asked, that it may be asleep. Return False if the order arrived late or twice."""
    same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.DRAINING, asleep=None)
    wanted = same.filter(desired=DesiredState.ASLEEP, ordered_at__isnull=False)
    return bool(wanted.update(asleep=instance.sleep_level))


def _done(instance: Instance, steps: Sequence[SleepStep], *, wakes: bool = False, repeats: bool = True) -> bool:
    """Take the steps in order until one fails. Weights must not be reloaded while requests run, so an order that
    arrives during another one is void."""
    with _lock:
        if instance.pk in _under_way:
            return False
        _under_way.add(instance.pk)
    try:
        unanswered = asyncio.run(_take(instance, steps, wakes=wakes, repeats=repeats))
    except SleepRefused as refused:
        events.record(instance, "refused", str(refused))
        return False
    finally:
        _under_way.discard(instance.pk)
    if unanswered:
        events.record(instance, "refused", unanswered)
    return True


async def _take(instance: Instance, steps: Sequence[SleepStep], *, wakes: bool = False, repeats: bool = True) -> str:
    """Take the steps. Return why the last step counts as taken without an answer; empty if it was answered. An engine
    that may be asleep gets no requests before it is woken.
    """
    known = instance.pk, instance.epoch, wakes
    before = _acted.pop(known, 0)
    first = 0 if repeats else before
    for number, step in enumerate(steps[first:], first):
        try:
            await _take_step(instance, step)
        except SleepRefused as why:
            text = f"{'GET' if step.asks else 'POST'} {step.path}: {why}"
            acted = why.may_have_acted or (repeats and isinstance(why, HasFailed))
            taken = number + (acted and not step.asks)
            if not repeats and taken == len(steps):
                return text
            _acted[known] = taken
            raise type(why)(text) from None
    return ""


async def _take_step(instance: Instance, step: SleepStep) -> None:
    """Take one step. Raise SleepRefused."""
    transport = EngineTransport(instance.url, instance.engine_key, certificates=instance.tls)
    method, url = "GET" if step.asks else "POST", instance.url + step.path
    try:
        answer = await ask_through(transport, method, url, TIMEOUT_S, LARGEST, json=step.body)
    except (TimeoutError, httpx.TimeoutException):
        raise NoAnswer(f"no answer within {TIMEOUT_S:g} s") from None
    except httpx.HTTPError as error:
        kind = SleepRefused if isinstance(error, httpx.ConnectError) else NoAnswer
        raise kind(str(error) or type(error).__name__) from None
    if not 200 <= answer.status < 300:
        refusal = HasFailed if answer.status >= 500 else SleepRefused
        raise refusal(f"the engine answers {answer.status}")
    said = answer.body[:LARGEST].decode("utf-8", "replace")
    if step.says not in said.replace(" ", ""):
        raise SleepRefused(f"the engine says {said[:100]}")


def _note(instance: Instance, level: int | None, text: str) -> bool:
    same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state__in=_OUT)
    if not same.update(asleep=level, reason=text, ordered_at=None):
        return False
    events.record(instance, "asleep" if level is not None else "awake", text)
    publish_fleet(instance.pool.name)
    return True
