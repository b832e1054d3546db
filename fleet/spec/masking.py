"""Hiding the values of secret environment variables. Pure."""

from collections.abc import Mapping
from typing import Any

SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) and value else value for name, value in environment.items()}


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET)


def hidden(manifest: Any) -> Any:
    """The manifest with the values of its secret variables ({name, value}) hidden."""
    if isinstance(manifest, Mapping):
        secret = is_secret(str(manifest.get("name", ""))) and manifest.get("value")
        return {key: HIDDEN if secret and key == "value" else hidden(part) for key, part in manifest.items()}
    return [hidden(part) for part in manifest] if isinstance(manifest, list) else manifest


def as_shown(value: Any) -> Any:
    """An option value; a mapping is an environment."""
    return masked(value) if isinstance(value, Mapping) else value
