"""What people type on the account pages."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.utils import timezone

from controlplane.accounts.permissions import ROLE_SUMMARY, ROLES, SCOPES

EXPIRIES = (("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("", "never"))


class UserForm(forms.Form):
    username = forms.CharField(max_length=150, label="Name", validators=[UnicodeUsernameValidator()])
    password = forms.CharField(
        label="First password",
        min_length=10,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="At least 10 characters.",
    )
    role = forms.ChoiceField(choices=[(role, f"{role}: {ROLE_SUMMARY[role]}") for role in ROLES])

    def clean_username(self) -> str:
        username: str = self.cleaned_data["username"]
        if get_user_model().objects.filter(username__iexact=username).exists():
            raise forms.ValidationError(f"There is a user {username} already.")
        return username

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        validate_password(password)
        return password


class TokenForm(forms.Form):
    name = forms.CharField(max_length=80, label="Name", help_text="What uses it, for example “ci”.")
    scopes = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, label="Scopes")
    expires = forms.ChoiceField(choices=EXPIRIES, required=False, initial="90", label="Expires")

    def __init__(self, *args: Any, allowed: frozenset[str], **kwargs: Any) -> None:
        """`allowed`: a token cannot do more than the person it acts for."""
        super().__init__(*args, **kwargs)
        self.fields["scopes"].choices = [  # type: ignore[attr-defined]
            (scope, f"{scope}: {summary}") for scope, summary in SCOPES.items() if scope in allowed
        ]

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None
