"""Budgets of API keys and pools over REST."""

from datetime import datetime
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Field, Router, Status

from controlplane.common.as_seen import etag
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import Versioned, row_of
from controlplane.doors.api.openapi import IF_MATCH, ROW_MAX, Number
from controlplane.doors.api.unread import Body
from controlplane.people.audit.services import actor_of
from controlplane.traffic.keys.models import ApiKey, Budget
from controlplane.traffic.use import budgets
from controlplane.traffic.use.spending import BudgetNow, budgets_now
from router.contract.redis.budgets import Per, Unit
from router.contract.values.problem import invalid

router = Router(tags=["use"])
_row = partial(row_of, Budget.objects.select_related("key"), "budget")


class BudgetOut(Versioned):
    id: int
    key: int | None = Field(description="Id of the API key; null: the budget is a pool's")
    key_name: str
    pool: str = Field(description="Pool, in place of a key: the budget covers all that it serves")
    unit: Unit
    per: Per = Field(description="Of the calendar, in the time zone WEIR_BUDGET_TIME_ZONE; hours in UTC")
    limit: float = Field(description="Tokens, dollars or requests")
    warn_at: float = Field(description="Share of the limit from which a notice is sent")
    refuse: bool = Field(description="Refuse requests beyond the limit; false: only send a notice")
    period: str = Field(description="Current period, such as 2026-11-26T09, 2026-11-26, 2026-W48, 2026-11 or ever")
    ends: datetime | None = Field(description="null: never")
    spent: float = Field(description="Tokens, dollars or requests spent in the current period; about 10 s old")
    used_ratio: float = Field(description="Share of the limit spent in the current period; about 10 s old")


class BudgetIn(Body):
    key: int | None = Field(None, ge=1, le=ROW_MAX, description="Either a key or a pool")
    pool: str = Field("", max_length=63)
    unit: Unit
    per: Per
    limit: float
    warn_at: float = 0.8
    refuse: bool = True


class BudgetChange(Body):
    limit: float | None = None
    warn_at: float | None = None
    refuse: bool | None = None


def _shown(one: BudgetNow) -> dict[str, Any]:
    row = one.row
    return {
        "id": row.pk,
        "etag": etag(row),
        "key": row.key_id,
        "key_name": row.key.name if row.key is not None else "",
        "pool": row.pool,
        "unit": row.unit,
        "per": row.per,
        "limit": budgets.limit_of(row),
        "warn_at": row.warn_at,
        "refuse": row.refuse,
        "period": one.period.name,
        "ends": one.ends,
        "spent": budgets.shown_in(row, one.spent),
        "used_ratio": round(one.ratio, 6),
    }


def _now(row: Budget) -> dict[str, Any]:
    return _shown(budgets_now(timezone.now().timestamp(), [row])[0])


@router.get("", response=list[BudgetOut], auth=needs("use:read"))
def list_budgets(request: HttpRequest) -> Any:
    """Budgets of pools and of the keys that are not revoked, and what is spent of them"""
    return [_shown(one) for one in budgets_now(timezone.now().timestamp())]


@router.post("", response={201: BudgetOut}, auth=needs("keys:write"))
def create_budget(request: HttpRequest, payload: BudgetIn) -> Any:
    """Give a key or a pool a budget; what it used before in the present period counts"""
    if (payload.key is None) == (not payload.pool):
        raise invalid("key", payload.key, "a budget is either of a key or of a pool", "one of `key` and `pool`")
    key = ApiKey.objects.filter(pk=payload.key).first() if payload.key is not None else None
    if payload.key is not None and key is None:
        raise invalid("key", payload.key, "there is no such API key")
    terms = budgets.BudgetTerms(limit=payload.limit, warn_at=payload.warn_at, refuse=payload.refuse)
    return Status(
        201, _now(budgets.create_budget(key or payload.pool, payload.unit, payload.per, terms, actor_of(request)))
    )


@router.get("/{budget_id}", response=BudgetOut, auth=needs("use:read"))
def get_budget(request: HttpRequest, response: HttpResponse, budget_id: Number) -> Any:
    """One budget with its spending"""
    return _now(etags.of(response, _row(budget_id)))


@router.patch("/{budget_id}", response=BudgetOut, openapi_extra=IF_MATCH, auth=needs("keys:write"))
def change_budget(request: HttpRequest, response: HttpResponse, budget_id: Number, payload: BudgetChange) -> Any:
    """Change the given fields; what is spent stays"""
    changes = payload.dict(exclude_unset=True)
    for field, value in changes.items():
        if value is None:
            raise invalid(field, None, "must not be null")
    seen = etags.if_match(request)
    row = budgets.change_budget(_row(budget_id), changes, actor_of(request), if_match=seen)
    return _now(etags.of(response, row))


@router.delete("/{budget_id}", response={204: None}, openapi_extra=IF_MATCH, auth=needs("keys:write"))
def delete_budget(request: HttpRequest, budget_id: Number) -> Any:
    """Delete a budget; routers stop refusing at once"""
    budgets.delete_budget(_row(budget_id), actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)
