"""Forms of the account pages."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.utils import timezone

from controlplane.people.permissions import ROLE_SUMMARY, ROLES, SCOPES

EXPIRIES = (("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("", "never"))


def _new_password(label: str, help_text: str = "") -> forms.CharField:
    widget = forms.PasswordInput(attrs={"autocomplete": "new-password"})
    return forms.CharField(label=label, min_length=10, strip=False, widget=widget, help_text=help_text)


class UserForm(forms.Form):
    username = forms.CharField(max_length=150, label="Name", validators=[UnicodeUsernameValidator()])
    password = _new_password("First password", "At least 10 characters, not a common password. The user can change it.")
    role = forms.ChoiceField(choices=[(role, f"{role}: {ROLE_SUMMARY[role]}") for role in ROLES])

    def clean_username(self) -> str:
        username: str = self.cleaned_data["username"]
        if get_user_model().objects.filter(username__iexact=username).exists():
            raise forms.ValidationError(f"A user named {username} exists already.")
        return username

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        validate_password(password, User(username=self.cleaned_data.get("username", "")))
        return password


class PasswordForm(forms.Form):
    current = forms.CharField(
        label="Current password",
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "autofocus": True}),
    )
    new = _new_password("New password", "At least 10 characters, not a common password, not your name.")
    again = _new_password("Repeat the new password")

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def clean_current(self) -> str:
        current: str = self.cleaned_data["current"]
        if not self.user.check_password(current):
            raise forms.ValidationError("The current password is wrong.")
        return current

    def clean_new(self) -> str:
        new: str = self.cleaned_data["new"]
        validate_password(new, self.user)
        return new

    def clean_again(self) -> str:
        again: str = self.cleaned_data["again"]
        if again != self.cleaned_data.get("new", again):
            raise forms.ValidationError("The two passwords differ.")
        return again


class ExpiringForm(forms.Form):
    """A form with the field `expires`, one of EXPIRIES."""

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None


class TokenForm(ExpiringForm):
    name = forms.CharField(max_length=80, label="Name", help_text="The script that uses it, for example “ci”.")
    scopes = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, label="Scopes")
    expires = forms.ChoiceField(choices=EXPIRIES, required=False, initial="90", label="Expires")

    def __init__(self, *args: Any, allowed: frozenset[str], **kwargs: Any) -> None:
        """Create the form. `allowed` are the person's scopes, to which those of a token are limited."""
        super().__init__(*args, **kwargs)
        self.fields["scopes"].choices = [  # type: ignore[attr-defined]
            (scope, f"{scope}: {summary}") for scope, summary in SCOPES.items() if scope in allowed
        ]
