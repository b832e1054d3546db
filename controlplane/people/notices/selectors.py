"""Reads channels and their notices."""

from dataclasses import dataclass

from django.db.models import Count, Q

from controlplane.people.notices.display import masked_url
from controlplane.people.notices.models import Channel, Notice, Status

LOG = 100  # notices in a channel's log


@dataclass(frozen=True, slots=True)
class ChannelRow:
    channel: Channel
    url: str  # masked URL
    last: Notice | None  # newest notice with an attempt
    waiting: int


def channel_rows() -> list[ChannelRow]:
    counted = Count("notices", filter=Q(notices__status=Status.WAITING))
    return [row_of(channel, channel.waiting_count) for channel in Channel.objects.annotate(waiting_count=counted)]


def row_of(channel: Channel, waiting: int) -> ChannelRow:
    last = channel.notices.filter(attempts__gt=0).first()
    return ChannelRow(channel, masked_url(channel.url), last, waiting)


def log_of(channel: Channel, limit: int = LOG, before: int | None = None) -> list[Notice]:
    """Return the newest notices first."""
    rows = channel.notices.all() if before is None else channel.notices.filter(pk__lt=before)
    return list(rows[:limit])
