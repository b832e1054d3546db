"""The API key of a person's questions: a row like any other, with limits, budgets and use. Its secret is stored in no
table and shown on no page, because every web process can derive it."""

import hashlib
import hmac
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.common.as_seen import ChangedMeanwhile, etag
from controlplane.people.accounts.models import digest
from controlplane.people.audit.services import Actor
from controlplane.people.permissions import can_administer
from controlplane.traffic.keys import services
from controlplane.traffic.keys.models import ALL_POOLS, ApiKey
from controlplane.traffic.keys.publishing import publish
from controlplane.traffic.keys.services import KeyTerms
from router.contract.redis.api_keys import MARK
from router.contract.values.problem import InvalidInput

REQUESTS_PER_MIN, TOKENS_PER_MIN = 30, 200_000  # limits of a new key; administrators can change them


class MayNotAsk(Exception):
    """The person has no usable key; the message gives the reason and names who can help."""


def secret_of(user: Any) -> str:
    made = hmac.new(settings.SECRET_KEY.encode(), f"playground {user.pk}".encode(), hashlib.sha256).hexdigest()
    return f"{MARK.decode()}{_prefix(user)}-{made}"


def key_of(user: Any) -> ApiKey | None:
    """Return the user's key; None before the first question."""
    return ApiKey.objects.filter(prefix=_prefix(user)).first()


def first_key() -> ApiKey:
    """Return the key that the first question will create, with the fields that a page shows."""
    return ApiKey(requests_per_min=REQUESTS_PER_MIN, tokens_per_min=TOKENS_PER_MIN)


def ready(user: Any, actor: Actor) -> str:
    """Return the secret of a usable key, which the first question creates. Raise MayNotAsk."""
    row, secret = key_of(user) or _made(user, actor), secret_of(user)
    if not row.is_usable(timezone.now()):
        raise MayNotAsk(f"Your key {row.name} is {row.status}: an administrator decides whether you may ask.")
    if not can_administer(user):
        _fit(row, actor)
    if row.sha256 != digest(secret):  # WEIR_SECRET_KEY has changed
        ApiKey.objects.filter(pk=row.pk).update(sha256=digest(secret))
        publish()
    return secret


def _made(user: Any, actor: Actor) -> ApiKey:
    terms = KeyTerms(
        pools=_pools(user), requests_per_min=REQUESTS_PER_MIN, tokens_per_min=TOKENS_PER_MIN, priority_max=0
    )
    try:
        with transaction.atomic():
            row, _ = services.create_key(f"playground of {user.get_username()}"[:80], terms, actor)
            ApiKey.objects.filter(pk=row.pk).update(prefix=_prefix(user), sha256=digest(secret_of(user)))
    except InvalidInput as error:
        if (row_of_another := key_of(user)) is not None:  # another question created it meanwhile
            return row_of_another
        raise MayNotAsk(f"A key for you cannot be made: {error}.") from None
    row.refresh_from_db()
    return row


def _fit(row: ApiKey, actor: Actor) -> None:
    """Add the pools that now require no key to an operator's key, which keeps the pools that it already names. *Every
    pool* remains if it was set while the person was an administrator. Raise MayNotAsk.
    """
    pools = tuple(sorted({*row.pools, *_free()})) if row.pools else _some_free()
    if pools != tuple(row.pools):
        try:
            services.change_key(row, {"pools": pools}, actor, if_match=etag(row))
        except ChangedMeanwhile:  # perhaps by an administrator who is removing a pool
            raise MayNotAsk(f"Your key {row.name} was changed at this moment: ask again.") from None


def _pools(user: Any) -> tuple[str, ...]:
    """Return the pools of a new key; empty for every pool."""
    return () if can_administer(user) else _some_free()


def _some_free() -> tuple[str, ...]:
    if not (free := _free()):
        raise MayNotAsk("Every pool requires an API key, which only administrators give: ask one of them.")
    return free


def _free() -> tuple[str, ...]:
    """Return the pools that require no key; only administrators may grant access to other pools."""
    required = services.required_pools()
    return () if ALL_POOLS in required else tuple(pool for pool in services.pool_names() if pool not in required)


def _prefix(user: Any) -> str:
    """Return the key's prefix. It differs from every random prefix, because those consist of hexadecimal digits."""
    return f"play{user.pk}"
