"""The page Use: consumption and cost of each key, pool or model in a period."""

from dataclasses import asdict
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.common.as_seen import posted, posted_of
from controlplane.people.accounts.decorators import admin_action, admin_required, operator_required
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.keys.models import ApiKey, Budget, BudgetPer, BudgetUnit
from controlplane.traffic.keys.services import pool_names
from controlplane.traffic.use import budgets
from controlplane.traffic.use.budgets import BudgetTerms
from controlplane.traffic.use.chart import PER, UseChart, chart_of
from controlplane.traffic.use.selectors import BY, UseQuery, between, lines, total
from controlplane.traffic.use.spending import budgets_now
from router.contract.values.problem import InvalidInput

RANGES = {"day": "24 hours", "week": "7 days", "month": "this month", "last_month": "last month", "year": "12 months"}
PERS = {"": "in all", "hour": "by hour", "day": "by day", "month": "by month"}


class BudgetForm(forms.Form):
    key = forms.ModelChoiceField(ApiKey.objects.none(), required=False, label="API key")
    pool = forms.ChoiceField(required=False, label="Or pool", help_text="All that it serves, without a key too.")
    limit = forms.FloatField(label="Limit", help_text="Tokens (prompt and answer), dollars, or requests.")
    unit = forms.ChoiceField(choices=[(unit, unit) for unit in BudgetUnit.values], label="Unit")
    per = forms.ChoiceField(
        choices=[(per, per) for per in BudgetPer.values], label="Per", help_text="Of the calendar; ever: once."
    )
    warn_percent = forms.FloatField(
        initial=80, min_value=1, max_value=100, label="Warn at percent", help_text="A notice to the channels."
    )
    refuse = forms.BooleanField(initial=True, required=False, label="Refuse what goes beyond")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["key"].queryset = ApiKey.objects.filter(revoked_at=None).order_by("name")  # type: ignore[attr-defined]

        pools = [("", "---------"), *((name, name) for name in pool_names())]
        self.fields["pool"].choices = pools  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not self.errors and bool(data.get("key")) == bool(data.get("pool")):
            self.add_error("key", "Choose an API key or a pool: a budget is of one of them.")
        return data

    def terms(self) -> BudgetTerms:
        data = self.cleaned_data
        return BudgetTerms(limit=data["limit"], warn_at=data["warn_percent"] / 100, refuse=data["refuse"])


@operator_required
@require_GET
@never_cache
def use(request: HttpRequest) -> HttpResponse:
    key = request.GET.get("key", "")
    return _page(request, BudgetForm(initial={"key": key if key.isdecimal() and len(key) < 19 else None}))


@admin_required
@require_http_methods(["GET", "POST"])
def add_budget(request: HttpRequest) -> HttpResponse:
    """Create a budget. It replaces a budget for the same key or pool, unit and period, if that budget has not changed
    since it was shown.
    """
    if request.method == "GET":
        return redirect("use")
    form = BudgetForm(request.POST)
    if not form.is_valid():
        return _page(request, form)
    key, pool, unit, per = (form.cleaned_data[name] for name in ("key", "pool", "unit", "per"))
    found = Budget.objects.filter(key=key, pool=pool, unit=unit, per=per).select_related("key").first()
    try:
        if found is not None:
            seen = posted_of(request, found)
            row = budgets.change_budget(found, asdict(form.terms()), actor_of(request), if_match=seen)
        else:
            row = budgets.create_budget(key or pool, unit, per, form.terms(), actor_of(request))
    except InvalidInput as error:
        path = error.problems[0].path
        form.add_error(path if path in form.fields else None, str(error))
        return _page(request, form)
    messages.success(request, f"Budget set: {row}.")
    return redirect("use")


@admin_action
def delete_budget(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Budget.objects.select_related("key"), pk=pk)
    budgets.delete_budget(row, actor_of(request), if_match=posted(request))
    messages.success(request, f"Budget deleted: {row}.")
    return redirect("use")


def _page(request: HttpRequest, form: BudgetForm) -> HttpResponse:
    asked = {
        "range": _one_of(request, "range", RANGES, "week"),
        "by": _one_of(request, "by", BY, "key"),
        "per": _one_of(request, "per", PERS, ""),
    }
    if asked["per"] == "hour" and asked["range"] == "year":
        asked["per"] = "day"
    begin, end = between(asked["range"], timezone.now())
    found = lines(UseQuery(begin, end, (asked["by"],), asked["per"]))
    called = {"from": begin.isoformat(), "to": end.isoformat(), "by": asked["by"], "format": "csv"}
    context = {
        "asked": asked,
        "ranges": RANGES,
        "bys": BY,
        "pers": PERS,
        "lines": found,
        "total": total(found),
        "chart": _chart(asked["by"], begin, end, PER[asked["range"]]),
        "begin": begin,
        "end": end,
        "budgets": budgets_now(timezone.now().timestamp()),
        "form": form,
        "may_change": can_administer(request.user),
        "csv": urlencode(called | ({"per": asked["per"]} if asked["per"] else {})),
    }
    return render(request, "use/use.html", context, status=422 if form.errors else 200)


def _chart(by: str, begin: datetime, end: datetime, per: str) -> UseChart | None:
    return chart_of(lines(UseQuery(begin, end, (by,), per)), by, begin, end, per)


def _one_of(request: HttpRequest, name: str, allowed: object, default: str) -> str:
    given = request.GET.get(name, default)
    return given if given in allowed else default  # type: ignore[operator]
