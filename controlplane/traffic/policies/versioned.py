"""Bases of versioned documents (policies, Models): the immutable version and the one open draft."""

from typing import Any, NoReturn

from django.db import models
from django.utils import timezone

from router.contract.values.json_value import JsonObject


class Immutable(Exception):
    """An attempt to change a published version."""


class Unchanging:
    """A query set of versions that refuses to change them."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise Immutable("published versions do not change; publish or roll back to make a new one")

    def delete(self) -> NoReturn:
        raise Immutable("published versions are kept")


class PublishedVersion(models.Model):
    number = models.PositiveIntegerField()
    document = models.JSONField()
    sha256 = models.CharField(max_length=64)  # digest of the canonical document as stored, whatever its schema
    reason = models.TextField()
    actor_kind = models.CharField(max_length=8)
    actor_name = models.CharField(max_length=200)
    published_at = models.DateTimeField(default=timezone.now)
    based_on = models.PositiveIntegerField(null=True)  # version that was live when its draft was opened
    draft_etag = models.CharField(max_length=40, blank=True)  # identifies a repeated press of "Publish"
    rollback_of = models.PositiveIntegerField(null=True)  # version whose document this one restores

    class Meta:
        abstract = True

    @property
    def label(self) -> str:
        """Return the version's label for pages, which would show a plain number with thousands separators."""
        return f"v{self.number}"

    @property
    def etag(self) -> str:
        return self.label

    @property
    def upgraded(self) -> JsonObject:
        """Return the document in the current schema, for pages, comparisons and new drafts."""
        document: JsonObject = self.document
        return document


class OpenDraft(models.Model):
    """The one open draft. Each save is a new revision; publishing or discarding deletes the row."""

    document = models.JSONField()
    based_on = models.PositiveIntegerField()  # number of the version that was live when it was opened or rebased
    revision = models.PositiveIntegerField(default=1)
    opened_by = models.CharField(max_length=200)
    updated_by = models.CharField(max_length=200)
    opened_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        abstract = True

    @property
    def etag(self) -> str:
        """Return the ETag. It includes the row's key, so that the ETag of a later draft differs."""
        return f"d{self.pk}.{self.revision}"

    @property
    def upgraded(self) -> JsonObject:
        """Return the document in the current schema; the next save stores it."""
        document: JsonObject = self.document
        return document

    def saved_by(self, person: str) -> dict[str, object]:
        """Return further fields that a save by this person changes, besides the document."""
        return {}
