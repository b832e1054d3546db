"""Writes notices into the outbox and manages the channels. Each change to a channel has an audit entry."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.people.notices import display, wordless
from controlplane.people.notices.events import EVENTS, TEST, choices, matches
from controlplane.people.notices.models import Channel, ChannelKind, Notice, Status
from controlplane.people.notices.senders import apprise_urls, signing, webhooks
from fleet.events import announce, record_pool
from fleet.models import Pool
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import invalid

NAME_MAX = 80
NOTE_MAX = 500
ROTATION = timedelta(hours=24)  # time during which the old secret also signs


def notify(
    event: str, subject: str, text: str, facts: JsonObject | None = None, actor: str = "", mark: str = ""
) -> None:
    """Write an event's notices inside its transaction: they are committed together, and then the chart mark is set.
    `facts` are added to the body of webhooks: numbers and names for programs, as JSON values. Their `pools` are those
    whose charts get the mark. `mark` is the mark's text if `text` is too long for one line.
    """
    enqueue(event, subject, text, facts)
    at, pools = time.time(), (facts or {}).get("pools")
    marked = tuple(map(str, pools)) if isinstance(pools, list) else ()
    transaction.on_commit(lambda: announce(event, subject, mark or text, actor, at, marked))


def enqueue(event: str, subject: str, text: str, facts: JsonObject | None = None) -> None:
    """Write a notice for each enabled channel that subscribes to `event`, without a mark."""
    if event not in EVENTS:
        raise ValueError(f"unknown event {event}; known: {', '.join(EVENTS)}")
    to = [channel for channel in Channel.objects.filter(enabled=True) if matches(channel.events, event)]
    Notice.objects.bulk_create([_notice(channel, event, subject, text, facts) for channel in to])


def _notice(channel: Channel, event: str, subject: str, text: str, facts: JsonObject | None = None) -> Notice:
    if not channel.words:
        text, facts = wordless.text_of(event, subject), wordless.facts_of(facts or {})
        subject = wordless.subject_of(subject)
    return Notice(channel=channel, event=event, subject=subject[:200], text=text, facts=facts or {})


@transaction.atomic
def write_note(pool: Pool, text: str, actor: Actor) -> None:
    """Write a person's note to the pool's history, as a mark on the charts, and to the channels."""
    text = text.strip()
    if not 0 < len(text) <= NOTE_MAX:
        raise invalid("text", text, "a note must not be empty or longer than allowed", f"1 to {NOTE_MAX} characters")
    record_pool(pool, "note", text, actor.name[:150])
    enqueue("note.written", f"pool {pool.name}", f"{actor.name}: {text}", {"pool": pool.name, "by": actor.name})
    audit.record(actor, "note.write", f"pool {pool.name}", text)


# Channels


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTerms:
    """The fields of a channel that can be changed."""

    name: str
    url: str
    events: Sequence[str] = ("*",)
    enabled: bool = True
    words: bool = True  # True if its receivers may read text that people wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEdit:
    """Changes to a channel; None leaves a field as it is."""

    name: str | None = None
    url: str | None = None
    events: Sequence[str] | None = None
    enabled: bool | None = None
    words: bool | None = None


def create_channel(kind: str, terms: ChannelTerms, actor: Actor) -> tuple[Channel, str]:
    """Create a channel; return the row and the secret of its signatures (empty for Apprise), which is not shown again.
    Raise InvalidInput."""
    if kind not in ChannelKind.values:
        raise invalid("kind", kind, "unknown kind of channel", ", ".join(ChannelKind.values))
    checked = _checked(kind, terms)
    secret = signing.new_secret() if kind == ChannelKind.WEBHOOK else ""
    with _name_free(terms.name), transaction.atomic():
        row = Channel.objects.create(kind=kind, secret=secret, created_by=actor.name[:200], **asdict(checked))
        audit.record(actor, "channel.create", f"channel {row.name}", "", None, _audited(row))
    return row, secret


def change_channel(row: Channel, change: ChannelEdit, actor: Actor, *, if_match: str | None = None) -> Channel:
    """Write the given fields. Raise InvalidInput and ChangedMeanwhile. An unchanged URL is not checked again."""
    given = {name: value for name, value in asdict(change).items() if value is not None}
    with _name_free(change.name or row.name), _held(row, if_match) as row:
        before = _audited(row)
        kept = ChannelTerms(name=row.name, url=row.url, events=row.events, enabled=row.enabled, words=row.words)
        checked = asdict(_checked(row.kind, replace(kept, **given), url_changed=change.url is not None))
        Channel.objects.filter(pk=row.pk).update(**{name: checked[name] for name in given})
        row.refresh_from_db()
        if not row.enabled:
            _give_up(row)
        # The audit log never contains a URL, only the fact that it changed.
        url = {} if change.url is None else {"url_changed": True}
        audit.record(actor, "channel.change", f"channel {row.name}", "", before, {**_audited(row), **url})
    return row


def _held(row: Channel, if_match: str | None) -> AbstractContextManager[Channel]:
    return held(Channel.objects.filter(pk=row.pk), f"channel {row.name}", if_match)


def _give_up(row: Channel) -> None:
    waiting = row.notices.filter(status=Status.WAITING)
    waiting.update(status=Status.GIVEN_UP, ended_at=timezone.now(), outcome="the channel was disabled")


def rotate_secret(row: Channel, actor: Actor, *, if_match: str | None = None) -> str:
    """Return a new secret, shown once. Both secrets sign for a day, so that the receiver can switch."""
    with _held(row, if_match) as row:
        if row.kind != ChannelKind.WEBHOOK:
            raise invalid("", row.name, "only webhooks have a secret")
        row.secret, row.old_secret, row.rotated_until = signing.new_secret(), row.secret, timezone.now() + ROTATION
        row.save(update_fields=["secret", "old_secret", "rotated_until"])
        audit.record(actor, "channel.rotate", f"channel {row.name}")
    return row.secret


def delete_channel(row: Channel, actor: Actor, *, if_match: str | None = None) -> None:
    with _held(row, if_match) as row:
        audit.record(actor, "channel.delete", f"channel {row.name}", "", _audited(row), None)
        row.delete()


def test_channel(row: Channel, actor: Actor) -> Notice:
    """Queue the test notice, also for a disabled channel."""
    with _held(row, None) as row:
        notice = _notice(row, TEST, f"channel {row.name}", f"{actor.name} tests this channel.", {"by": actor.name})
        notice.save()
        audit.record(actor, "channel.test", f"channel {row.name}")
    return notice


def set_enabled(row: Channel, enabled: bool, actor: Actor, *, if_match: str | None = None) -> Channel:
    return change_channel(row, ChannelEdit(enabled=enabled), actor, if_match=if_match)


def _checked(kind: str, terms: ChannelTerms, *, url_changed: bool = True) -> ChannelTerms:
    name = terms.name.strip()
    if not 0 < len(name) <= NAME_MAX:
        raise invalid("name", terms.name, "a channel needs a name", f"1 to {NAME_MAX} characters")
    if url_changed:
        check = webhooks.check if kind == ChannelKind.WEBHOOK else apprise_urls.check
        check(terms.url)
    return replace(terms, name=name, events=_checked_events(terms.events))


def _checked_events(events: Iterable[str]) -> list[str]:
    wanted = list(dict.fromkeys(events))
    if not wanted:
        raise invalid("events", [], "a channel needs at least one event", ", ".join(choices()))
    for i, event in enumerate(wanted):
        if event not in choices():
            raise invalid(f"events.{i}", event, "unknown event", ", ".join(choices()))
    return wanted


@contextlib.contextmanager
def _name_free(name: str) -> Iterator[None]:
    """Convert a violation of the database's unique constraint on names to an InvalidInput."""
    try:
        yield
    except IntegrityError:
        raise invalid("name", name, "a channel of that name exists already") from None


def _audited(row: Channel) -> dict[str, object]:
    shown = display.masked_url(row.url)
    flags = {"enabled": row.enabled, "words": row.words}
    return {"name": row.name, "kind": row.kind, "url": shown, "events": row.events, **flags}
