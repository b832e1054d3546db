"""Reads the document Models."""

from dataclasses import dataclass

from django.db.models import QuerySet

from controlplane.traffic.aliases.models import ModelsDraft, ModelsVersion
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.selectors import NUMBER_MAX
from router.contract import models
from router.contract.json_value import JsonObject
from router.contract.models import Adapter, Models


@dataclass(frozen=True, slots=True)
class Live:
    """The live version; an empty document of version 0 before the first publication."""

    version: ModelsVersion | None

    @property
    def number(self) -> int:
        return self.version.number if self.version is not None else 0

    @property
    def label(self) -> str:
        return f"v{self.number}"

    @property
    def etag(self) -> str:
        return self.label

    @property
    def document(self) -> JsonObject:
        return self.version.document if self.version is not None else models.empty()

    @property
    def by(self) -> str:
        return self.version.actor_name if self.version is not None else "nobody"

    @property
    def models(self) -> Models:
        return models.parse(self.document)


def live() -> Live:
    return Live(ModelsVersion.objects.order_by("-number").first())


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
    """The version that was published from this revision of a draft."""
    return ModelsVersion.objects.filter(draft_etag=draft_etag).first() if draft_etag else None


def rollback_target() -> ModelsVersion | None:
    """The version before the one whose document is live; None if there is none."""
    origin = live().version
    while origin is not None and origin.rollback_of is not None:
        origin = version(origin.rollback_of)
    return history().filter(number__lt=origin.number).first() if origin is not None else None


def adapters() -> dict[tuple[str, str], Adapter]:
    """The adapters that Weir has to load, by pool and name."""
    found = models.adapters_of(live().models)
    return {key: adapter for key, adapter in found.items() if adapter.source}
