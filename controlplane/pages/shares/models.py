"""A share of live state."""

from django.db import models

from controlplane.people.accounts.models import TOKEN_MARK, Revocable


class Share(Revocable):
    """Whoever has the token may see the live state of a pool, or of all pools, and nothing else."""

    mark = f"{TOKEN_MARK}_share"

    pool = models.CharField(max_length=63, blank=True)  # empty: all pools
    created_by = models.CharField(max_length=200)
