"""The versions of the document Models, and its one open draft."""

from django.db import models

from controlplane.traffic.policies.versioned import OpenDraft, PublishedVersion, Unchanging
from router.contract.models import Models, parse


class ModelsVersionQuerySet(Unchanging, models.QuerySet["ModelsVersion"]):
    pass


class ModelsVersion(PublishedVersion):
    """A published version; the newest is live."""

    objects = ModelsVersionQuerySet.as_manager()

    class Meta:
        ordering = ["-number"]
        constraints = [
            # Of two concurrent publications, only one gets the next number.
            models.UniqueConstraint(fields=["number"], name="models_version_number_once"),
        ]

    def __str__(self) -> str:
        return f"Models {self.label}"

    @property
    def aliases(self) -> Models:
        return parse(self.document)


class ModelsDraft(OpenDraft):
    only = models.BooleanField(default=True, unique=True, editable=False)  # allows only one open draft

    def __str__(self) -> str:
        return f"draft of Models, revision {self.revision}"
