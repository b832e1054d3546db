"""Forms of the API keys page."""

from datetime import timedelta
from typing import Any

from django import forms
from django.utils import timezone

from controlplane.people.accounts.forms import EXPIRIES
from controlplane.traffic.keys.models import ALL_POOLS
from controlplane.traffic.keys.services import LIMIT_MAX, KeyTerms
from router.contract.redis.api_keys import BAND_MAX


class KeyForm(forms.Form):
    name = forms.CharField(
        max_length=80, label="Name", help_text="The team or service that uses it, for example “search team”."
    )
    pools = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, required=False, label="Pools")
    models = forms.CharField(
        required=False,
        max_length=2000,
        label="Models",
        help_text="Names that it may ask for, by commas. Empty: every one.",
    )
    requests_per_min = forms.IntegerField(
        required=False, min_value=1, max_value=LIMIT_MAX, label="Requests per minute", help_text="Empty: no limit."
    )
    tokens_per_min = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=LIMIT_MAX,
        label="Tokens per minute",
        help_text="Prompt and answer. Empty: no limit.",
    )
    priority = forms.IntegerField(
        required=False,
        min_value=-BAND_MAX,
        max_value=BAND_MAX,
        label="Priority",
        help_text=f"Of requests that ask for none: -{BAND_MAX} to {BAND_MAX}, higher is admitted earlier. Empty: 0.",
    )
    priority_max = forms.IntegerField(
        required=False,
        min_value=-BAND_MAX,
        max_value=BAND_MAX,
        label="Highest priority",
        help_text="That its requests may ask for. Empty: 0, or the priority if that is higher.",
    )
    expires = forms.ChoiceField(choices=EXPIRIES, required=False, initial="", label="Expires")

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["pools"].choices = [(pool, pool) for pool in pools]  # type: ignore[attr-defined]

    def terms(self) -> KeyTerms:
        data = self.cleaned_data
        days = data["expires"]
        return KeyTerms(
            pools=tuple(data["pools"]),
            models=tuple(name for part in data["models"].split(",") if (name := part.strip())),
            requests_per_min=data["requests_per_min"],
            tokens_per_min=data["tokens_per_min"],
            priority=data["priority"] or 0,
            priority_max=data["priority_max"],
            expires_at=timezone.now() + timedelta(days=int(days)) if days else None,
        )


class RequiredForm(forms.Form):
    required = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, required=False, label="Keys required")

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        every = (ALL_POOLS, "every pool, including future pools")
        self.fields["required"].choices = [every, *((pool, pool) for pool in pools)]  # type: ignore[attr-defined]
