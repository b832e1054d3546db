"""Sends notices in steps: fleet events become notices, due notices are claimed and sent in the order of their channels,
and their outcome is stored. A claim is a conditional UPDATE that also sets the time of the next attempt. If a process
ends while sending, the notice is due again after CLAIM; a notice is therefore sent at least once, and sometimes twice
with the same message id.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

import httpx
import structlog
from django.db import transaction
from django.db.models import F, Max

from controlplane.people.notices.errors import Unsendable
from controlplane.people.notices.models import ChannelKind, Cursor, Notice, Status
from controlplane.people.notices.senders import apprise_urls, webhooks
from controlplane.people.notices.services import enqueue
from fleet.models import InstanceEvent, State
from router.contract.pools import is_ephemeral
from router.contract.values.json_value import JsonObject

log = structlog.get_logger(__name__)

PER_CHANNEL = 20  # notices of one channel in a step, sent one after another; channels do not wait for each other
HOLDS = 3  # failed attempts during which later notices of the channel wait; later ones then pass
SEND_S = 10.0  # limit of one attempt
CLAIM = timedelta(seconds=30)  # longer than two of SEND_S
RETRY_S = (5, 30, 120, 600, 1800, 3600)  # delays after the first, second … failed attempt; the last one repeats
GIVEN_UP_AFTER = timedelta(hours=24)
KEPT = timedelta(days=30)  # how long ended notices are kept
SETTLED = timedelta(seconds=3)  # age of final events; until then, a transaction with a lower number may still commit
EVENTS = {State.FAILED: "instance.failed", State.UNREACHABLE: "instance.failed", "silent": "node.silent"}


@dataclass(frozen=True, slots=True)
class Message:
    """The data of one attempt; the database is not used while the event loop runs."""

    pk: int  # also the order of sending within its channel
    channel: int
    attempts: int  # including the current one
    kind: str
    url: str
    keys: tuple[str, ...]  # signing keys, the new one first
    message_id: str
    event: str
    subject: str
    text: str
    facts: JsonObject
    at: datetime


def step(now: datetime) -> int:
    """Take one step. Return the number of notices attempted. A fleet event that cannot be reported does not delay
    others."""
    try:
        collect_fleet_events(now)
    finally:
        tried = send_due(now)
    return tried


def send_due(now: datetime) -> int:
    messages = claim(now)
    outcomes = asyncio.run(send_all(messages, now)) if messages else {}
    for message in messages:
        if message.pk in outcomes:
            store(message.pk, outcomes[message.pk], now)
        else:
            _unclaim(message, now)
    return len(outcomes)


def claim(now: datetime) -> list[Message]:
    """Claim due notices, in order within each channel. If two processes try, only one of them gets a notice."""
    messages: list[Message] = []
    lost = set()  # channels whose next notice another process has claimed
    for notice in _due(now):
        mine = Notice.objects.filter(pk=notice.pk, status=Status.WAITING, attempts=notice.attempts)
        if notice.channel_id in lost:
            continue
        if mine.update(attempts=F("attempts") + 1, due_at=now + CLAIM):
            messages.append(_message(notice, now))
        else:
            lost.add(notice.channel_id)
    return messages


def _unclaim(message: Message, now: datetime) -> None:
    """Return a notice that was not tried, because an earlier one failed or took too long."""
    mine = Notice.objects.filter(pk=message.pk, status=Status.WAITING, attempts=message.attempts)
    mine.update(attempts=F("attempts") - 1, due_at=now)


def _due(now: datetime) -> list[Notice]:
    waiting = Notice.objects.filter(status=Status.WAITING)
    due = waiting.filter(due_at__lte=now)
    # A notice that ends the process in every attempt has no outcome, so its age ends it.
    tried = due.filter(attempts__gt=0, at__lt=now - GIVEN_UP_AFTER)
    tried.update(status=Status.GIVEN_UP, ended_at=now, outcome="not sent within 24 hours")
    found: list[Notice] = []
    for channel in due.order_by("channel").values_list("channel", flat=True).distinct():
        own = waiting.filter(channel=channel).select_related("channel").order_by("pk")
        in_order = own.filter(attempts__lt=HOLDS)[:PER_CHANNEL]
        found += takewhile(lambda notice: notice.due_at <= now, in_order)
        found += own.filter(attempts__gte=HOLDS, due_at__lte=now)[:1]
    return found


def _message(notice: Notice, now: datetime) -> Message:
    channel = notice.channel
    keys = [channel.secret]
    if channel.old_secret and channel.rotated_until is not None and now < channel.rotated_until:
        keys.append(channel.old_secret)
    return Message(
        pk=notice.pk,
        channel=notice.channel_id,
        attempts=notice.attempts + 1,
        kind=channel.kind,
        url=channel.url,
        keys=tuple(keys),
        message_id=notice.message_id,
        event=notice.event,
        subject=notice.subject,
        text=notice.text,
        facts=notice.facts,
        at=notice.at,
    )


async def send_all(messages: list[Message], now: datetime) -> dict[int, str | Exception]:
    """Return the outcome of each notice, or why it was not sent; none for notices that wait for an earlier one."""
    outcomes: dict[int, str | Exception] = {}
    channels = {message.channel for message in messages}
    own = ([message for message in messages if message.channel == channel] for channel in channels)
    await asyncio.gather(*(_send_in_order(each, now, outcomes) for each in own))
    return outcomes


async def _send_in_order(messages: list[Message], now: datetime, outcomes: dict[int, str | Exception]) -> None:
    """Send the notices in turn until one fails. None is begun after SEND_S, so that all attempts end before the claim
    expires.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + SEND_S
    async with webhooks.client() as client:
        for message in messages:
            try:
                outcomes[message.pk] = await _bounded(client, message, now)
            except Exception as error:
                outcomes[message.pk] = error
            if isinstance(outcomes[message.pk], Exception) or loop.time() > end:
                return


async def _bounded(client: httpx.AsyncClient, message: Message, now: datetime) -> str:
    try:
        async with asyncio.timeout(SEND_S):
            return await _send(client, message, now)
    except TimeoutError:
        raise Unsendable(f"no answer within {SEND_S:g} s") from None


async def _send(client: httpx.AsyncClient, message: Message, now: datetime) -> str:
    if message.kind == ChannelKind.APPRISE:
        return await apprise_urls.send(message.url, f"{message.event}: {message.subject}", message.text)
    at = message.at.isoformat()
    body = webhooks.body_of(message.pk, message.event, message.subject, message.text, message.facts, at)
    return await webhooks.post(client, message.url, message.message_id, body, message.keys, int(now.timestamp()))


def store(pk: int, outcome: str | Exception, now: datetime) -> None:
    notice = Notice.objects.filter(pk=pk).first()
    if notice is None:  # its channel was deleted meanwhile
        return
    waiting, words = Notice.objects.filter(pk=pk, status=Status.WAITING), _words(outcome)
    if isinstance(outcome, str):
        waiting.update(outcome=words, status=Status.SENT, ended_at=now)
        return
    _log(notice, outcome)
    next_at = now + timedelta(seconds=RETRY_S[min(notice.attempts, len(RETRY_S)) - 1])
    if next_at > notice.at + GIVEN_UP_AFTER:
        waiting.update(outcome=words, status=Status.GIVEN_UP, ended_at=now)
    else:
        waiting.update(outcome=words, due_at=next_at)


def _words(outcome: str | Exception) -> str:
    """Describe the outcome. For an unexpected exception, only the type is stored, because its text may contain the
    URL."""
    text = str(outcome) if isinstance(outcome, str | Unsendable) else f"failed: {type(outcome).__name__}"
    return text[:300]


def _log(notice: Notice, outcome: Exception) -> None:
    expected = isinstance(outcome, Unsendable)
    log.warning(
        "notice.not_sent", notice=notice.message_id, channel=notice.channel_id, why=_words(outcome), bug=not expected
    )


def collect_fleet_events(now: datetime) -> None:
    """Convert failed instances and silent nodes to notices; the cursor moves in the same transaction."""
    cursor = Cursor.objects.filter(pk=1).first()
    newest = InstanceEvent.objects.filter(at__lte=now - SETTLED).aggregate(pk=Max("pk"))["pk"] or 0
    if cursor is None:  # at the first step, past events are not sent
        Cursor.objects.get_or_create(pk=1, defaults={"event_pk": newest})
        return
    if newest <= cursor.event_pk:
        return
    with transaction.atomic():
        if not Cursor.objects.filter(pk=1, event_pk=cursor.event_pk).update(event_pk=newest):
            return  # another process was faster
        for event in InstanceEvent.objects.filter(pk__gt=cursor.event_pk, pk__lte=newest, kind__in=EVENTS).order_by(
            "pk"
        ):
            _enqueue(event)


def _enqueue(event: InstanceEvent) -> None:
    if is_ephemeral(event.pool):
        return
    name = event.instance or event.node
    facts: JsonObject = {"instance": event.instance, "pool": event.pool, "node": event.node, "state": event.kind}
    enqueue(EVENTS[event.kind], f"{'instance' if event.instance else 'node'} {name}", f"{name}: {event.text}", facts)


def forget_old(now: datetime) -> int:
    """Delete notices that ended more than KEPT ago, and return their number."""
    return Notice.objects.filter(ended_at__lt=now - KEPT).delete()[0]
