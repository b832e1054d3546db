"""Channels and the outbox of notices. URLs and secrets of channels are read from the database only for sending
(display.py)."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from controlplane.people.notices.display import masked_url


class ChannelKind(models.TextChoices):
    WEBHOOK = "webhook"
    APPRISE = "apprise"


class Channel(models.Model):
    """A receiver of notices. Its name is reserved only while it exists."""

    name = models.CharField(max_length=80, unique=True)
    kind = models.CharField(max_length=8, choices=ChannelKind)
    url = models.TextField()  # may contain a token, and is therefore shown masked
    secret = models.CharField(max_length=80, blank=True)  # key of a webhook's signatures
    old_secret = models.CharField(max_length=80, blank=True)  # also signs until `rotated_until`
    rotated_until = models.DateTimeField(null=True, blank=True)
    events = models.JSONField(default=list)  # names, groups such as "delivery.*", or "*"
    enabled = models.BooleanField(default=True)
    words = models.BooleanField(default=True, db_default=True)  # True if its receivers may read text that people wrote
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:  # Django's would also show no fields, but errors and logs may print this one
        return f"<Channel {self.pk}: {self.name}>"

    @property
    def masked_url(self) -> str:
        return masked_url(self.url)


class Status(models.TextChoices):
    WAITING = "waiting"
    SENT = "sent"
    GIVEN_UP = "given up"


def new_message_id() -> str:
    return f"msg_{uuid.uuid4().hex}"


class Notice(models.Model):
    """An event for one channel, written in the transaction of the event and sent by `step.py`."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="notices")
    message_id = models.CharField(max_length=40, unique=True, default=new_message_id)  # the same in every attempt
    event = models.CharField(max_length=40)
    subject = models.CharField(max_length=200)  # such as "policy default v44"
    text = models.TextField()
    facts = models.JSONField(default=dict)
    at = models.DateTimeField(default=timezone.now)
    status = models.CharField(max_length=8, choices=Status, default=Status.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now)  # time of the next attempt; a claim postpones it
    ended_at = models.DateTimeField(null=True, blank=True)  # when it was sent or given up
    outcome = models.CharField(max_length=300, blank=True)  # outcome of the last attempt

    class Meta:
        ordering = ["-pk"]
        indexes = [
            # The step looks for due notices every 2 s.
            models.Index(fields=["due_at"], condition=Q(status="waiting"), name="notice_due"),
            # The page lists the log of a channel.
            models.Index(fields=["channel", "-id"], name="notice_by_channel"),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.subject}"


class Cursor(models.Model):
    """The last InstanceEvent that was turned into notices, in a single row."""

    event_pk = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="notice_cursor_is_one_row")]

    def __str__(self) -> str:
        return str(self.event_pk)
