"""A share of live state."""

from django.db import models

from controlplane.people.accounts.models import TOKEN_MARK, Revocable


class Share(Revocable):
    """Gives holders of its token access to the live state of a pool, or of all pools, and to nothing else."""

    mark = f"{TOKEN_MARK}_share"

    pool = models.CharField(max_length=63, blank=True)  # empty for all pools
    created_by = models.CharField(max_length=200)
