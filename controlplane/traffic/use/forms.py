"""The form of a budget."""

from typing import Any

from django import forms

from controlplane.traffic.keys.models import ApiKey, BudgetPer, BudgetUnit
from controlplane.traffic.keys.services import pool_names
from controlplane.traffic.use.budgets import BudgetTerms


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
