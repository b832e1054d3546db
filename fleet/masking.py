"""Which variables hold secrets, and how they are shown: that there is one, not which. Pure."""

from collections.abc import Mapping
from typing import Any

SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) and value else value for name, value in environment.items()}


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET)


def as_shown(value: Any) -> Any:
    """Of an option: a mapping is an environment."""
    return masked(value) if isinstance(value, Mapping) else value
