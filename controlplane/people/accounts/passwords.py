"""A password rule in addition to Django's own."""

from typing import Any

from django.core.exceptions import ValidationError


class NoBlanks:
    """A rule that ignores blanks when it counts the length: ten blanks are not a password."""

    def __init__(self, min_length: int) -> None:
        self.min_length = min_length

    def validate(self, password: str, user: Any = None) -> None:
        if len(password) >= self.min_length > len("".join(password.split())):
            raise ValidationError(f"{self.get_help_text()}", code="password_of_blanks")

    def get_help_text(self) -> str:
        return f"Your password must contain at least {self.min_length} characters that are no blanks."
