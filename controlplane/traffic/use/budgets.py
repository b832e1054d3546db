"""Creates, changes and deletes budgets of keys and pools, each with an audit entry. Budgets are published to routers
after the commit."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import redis
import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.keys import publishing
from controlplane.traffic.keys.models import ApiKey, Budget, BudgetPer, BudgetUnit
from controlplane.traffic.keys.services import pool_names
from controlplane.traffic.use import spending, step
from router.contract.redis.budgets import MICRO
from router.contract.values.problem import invalid

log = structlog.get_logger(__name__)
MOST = {BudgetUnit.TOKENS: 1e15, BudgetUnit.DOLLARS: 1e9, BudgetUnit.REQUESTS: 1e12}
LEAST = {BudgetUnit.TOKENS: 1, BudgetUnit.DOLLARS: 0.01, BudgetUnit.REQUESTS: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTerms:
    """The part of a budget that can be changed."""

    limit: float  # tokens, dollars or requests
    warn_at: float = 0.8  # share of the limit, 0–1
    refuse: bool = True


def create_budget(of: ApiKey | str, unit: str, per: str, terms: BudgetTerms, actor: Actor) -> Budget:
    """Create a budget of a key, or of the pool with this name. Raise InvalidInput."""
    if unit not in BudgetUnit.values:
        raise invalid("unit", unit, "unknown unit", ", ".join(BudgetUnit.values))
    if per not in BudgetPer.values:
        raise invalid("per", per, "unknown period", ", ".join(BudgetPer.values))
    values = _checked(unit, terms)
    _gather()
    try:
        with transaction.atomic():
            owner = {"key": of} if isinstance(of, ApiKey) else {"pool": of}
            _check_usable(Budget(**owner))
            row = Budget.objects.create(**owner, unit=unit, per=per, created_by=actor.name[:200], **values)
            spending.record_before(row, timezone.now())
            audit.record(actor, "budget.create", row.owner, "", None, _audited(row))
            transaction.on_commit(lambda: _publish(row))
    except IntegrityError:
        raise invalid("per", per, f"there is a budget in {unit} per {per} already: change that one") from None
    return row


def _gather() -> None:
    """Bring the routers' latest reports into the ledger, which is otherwise 10 s behind. A budget that is deleted and
    created again then starts with the amount already spent.
    """
    try:
        step.gather(timezone.now())
    except redis.RedisError as error:
        log.warning("budget.begins_with_the_ledger", error=str(error))


def change_budget(row: Budget, changes: Mapping[str, Any], actor: Actor, *, if_match: str | None = None) -> Budget:
    """Write the given fields of BudgetTerms. Raise InvalidInput and ChangedMeanwhile. Notices of the current period
    are sent again if the new limit requires them."""
    with _held(row, if_match) as row:
        values = _checked(row.unit, replace(terms_of(row), **changes))
        _check_usable(row)
        before = _audited(row)
        given = {name: values[name] for name in changes}
        Budget.objects.filter(pk=row.pk).update(**given, warned="", exceeded="")
        row.refresh_from_db()
        audit.record(actor, "budget.change", row.owner, "", before, _audited(row))
        transaction.on_commit(lambda: _publish(row))
    return row


def delete_budget(row: Budget, actor: Actor, *, if_match: str | None = None) -> None:
    with _held(row, if_match) as row:
        audit.record(actor, "budget.delete", row.owner, "", _audited(row), None)
        row.delete()
        transaction.on_commit(publishing.publish)


def _held(row: Budget, if_match: str | None) -> AbstractContextManager[Budget]:
    return held(Budget.objects.filter(pk=row.pk), f"budget {row.pk}", if_match)


def terms_of(row: Budget) -> BudgetTerms:
    return BudgetTerms(limit=limit_of(row), warn_at=row.warn_at, refuse=row.refuse)


def limit_of(row: Budget) -> float:
    """Return the limit in tokens, dollars or requests."""
    return shown_in(row, row.limit)


def shown_in(row: Budget, amount: int) -> float:
    """Return an amount in tokens, dollars or requests."""
    return amount / MICRO if row.unit == BudgetUnit.DOLLARS else amount


def _publish(row: Budget) -> None:
    """Write first the spending, then the budget for routers; the control worker's steps repeat whatever fails here."""
    try:
        spending.exchange(row, timezone.now())
    except redis.RedisError as error:
        log.warning("budget.not_opened", budget=row.pk, error=str(error))
    publishing.publish()


def _check_usable(row: Budget) -> None:
    if row.key is None and row.pool not in pool_names():
        raise invalid("pool", row.pool, "no such pool", ", ".join(pool_names()) or "none")
    if row.key is not None and ApiKey.objects.filter(pk=row.key.pk).exclude(revoked_at=None).exists():
        raise invalid("key", row.key.name, "the API key is revoked")


def _checked(unit: str, terms: BudgetTerms) -> dict[str, object]:
    kind = BudgetUnit(unit)
    least, most = LEAST[kind], MOST[kind]
    whole = kind == BudgetUnit.DOLLARS or float(terms.limit).is_integer()
    if not (least <= terms.limit <= most and whole):
        number = "a number" if kind == BudgetUnit.DOLLARS else "a whole number"
        raise invalid("limit", terms.limit, f"must be {number} of {unit}", f"{least:g} to {most:,.0f}")
    if not 0 < terms.warn_at <= 1:
        raise invalid("warn_at", terms.warn_at, "must be a share of the limit", "above 0, at most 1")
    limit = round(terms.limit * MICRO) if kind == BudgetUnit.DOLLARS else int(terms.limit)
    return {"limit": limit, "warn_at": terms.warn_at, "refuse": terms.refuse}


def _audited(row: Budget) -> dict[str, object]:
    return {"unit": row.unit, "per": row.per, "limit": limit_of(row), "warn_at": row.warn_at, "refuse": row.refuse}
