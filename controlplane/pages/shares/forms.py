from typing import Any

from django import forms

from controlplane.people.accounts.forms import EXPIRIES, ExpiringForm
from fleet.models import Pool


class ShareForm(ExpiringForm):
    name = forms.CharField(max_length=80, label="Name", help_text="Where it will stand, for example “status page”.")
    pool = forms.ChoiceField(required=False, label="Shows")
    expires = forms.ChoiceField(choices=EXPIRIES, required=False, initial="90", label="Expires")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Pool.objects.order_by("name").values_list("name", flat=True)
        choices = [("", "all pools"), *((name, f"pool {name}") for name in names)]
        self.fields["pool"].choices = choices  # type: ignore[attr-defined]
