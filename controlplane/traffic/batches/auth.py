"""The API key of a call."""

from collections.abc import Mapping

from django.utils import timezone

from controlplane.people.accounts.models import digest
from controlplane.traffic.keys.models import ApiKey
from router.contract.redis.api_keys import secret_of


def key_of(headers: Mapping[bytes, bytes]) -> ApiKey | None:
    """Return the key in `authorization`, `x-api-key` or `api-key`; None unless it is valid."""
    secret = secret_of(headers)
    if secret is None:
        return None
    row = ApiKey.objects.filter(sha256=digest(secret.decode("latin-1"))).first()
    return row if row is not None and row.is_usable(timezone.now()) else None
