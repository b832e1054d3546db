"""Reads the document Models."""

from django.db.models import QuerySet

from controlplane.traffic.aliases.models import ModelsDraft, ModelsVersion
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.selectors import NUMBER_MAX
from router.contract import models
from router.contract.models import Adapter


def live() -> ModelsVersion:
    """Return the live version; before the first publication, version 0, which is not stored and has no names."""
    return history().first() or before_any()


def before_any() -> ModelsVersion:
    return ModelsVersion(number=0, document=models.empty(), actor_name="nobody")


def history() -> QuerySet[ModelsVersion]:
    return ModelsVersion.objects.order_by("-number")


def version(number: int) -> ModelsVersion:
    found = ModelsVersion.objects.filter(number=number).first() if number <= NUMBER_MAX else None
    if found is None:
        raise NoSuchPolicy(f"the document Models has no version {number}")
    return found


def open_draft() -> ModelsDraft | None:
    return ModelsDraft.objects.first()


def published_from(draft_etag: str) -> ModelsVersion | None:
    """Return the version published from this revision of a draft."""
    return ModelsVersion.objects.filter(draft_etag=draft_etag).first() if draft_etag else None


def rollback_target() -> ModelsVersion | None:
    """Return the version before the one whose document is live; None if there is none."""
    origin = live()
    while origin.rollback_of is not None:
        origin = version(origin.rollback_of)
    return history().filter(number__lt=origin.number).first()


def adapters() -> dict[tuple[str, str], Adapter]:
    """Return the adapters that Weir has to load, by pool and name."""
    found = models.adapters_of(live().aliases)
    return {key: adapter for key, adapter in found.items() if adapter.source}
