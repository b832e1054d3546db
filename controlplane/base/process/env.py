"""Typed readers of environment variables. An error names the variable, its value and the allowed values.

Instead, `NAME_FILE` may contain the path of a file with the value, as for secrets in containers. An unknown boolean is
an error here; django-environ would read it as false.
"""

import os
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class BadSetting(Exception):
    """An environment variable with an invalid value."""


def text(name: str, default: str = "") -> str:
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise BadSetting(f"{name}_FILE={path}: {error.strerror}") from None
    return os.environ.get(name) or default  # An empty value counts as not set.


def needed(name: str, why: str) -> str:
    value = text(name)
    if not value:
        raise BadSetting(f"{name}: not set; {why}")
    return value


def flag(name: str, default: bool = False) -> bool:
    value = text(name).lower()
    if not value:
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise BadSetting(f"{name}={value}: allowed are 1, true, yes, on, 0, false, no, off")


def words(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """Return a comma-separated list."""
    value = text(name)
    return [word.strip() for word in value.split(",") if word.strip()] if value else list(default)


def allowed(name: str) -> tuple[str, ...] | None:
    """Return a comma-separated list; None if the variable is not set, so that everything is allowed."""
    return tuple(words(name)) or None


def folders(name: str) -> tuple[str, ...] | None:
    """Return a comma-separated list of absolute paths; None if the variable is not set."""
    found = allowed(name)
    for folder in found or ():
        if not folder.startswith("/"):
            raise BadSetting(f"{name}={folder}: allowed are absolute paths with commas between them")
    return found


def pairs(name: str) -> list[tuple[str, str]]:
    """Return the pairs of a text such as "key=value,key=value"."""
    found = [word.partition("=") for word in words(name)]
    for key, _, value in found:
        if not key or not value:
            raise BadSetting(f"{name}={text(name)}: must be KEY=VALUE pairs with commas between them")
    return [(key, value) for key, _, value in found]


def choice(name: str, allowed: tuple[str, ...]) -> str:
    """Return one of `allowed`, in any case; the first is the default."""
    value = text(name) or allowed[0]
    for word in allowed:
        if word.lower() == value.lower():
            return word
    raise BadSetting(f"{name}={value}: allowed are {', '.join(allowed)}")


def span(name: str, default: tuple[int, int]) -> tuple[int, int]:
    """Return a range of ports, FIRST-LAST."""
    value = text(name)
    if not value:
        return default
    first, _, last = value.partition("-")
    if first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535:
        return int(first), int(last)
    raise BadSetting(f"{name}={value}: allowed is FIRST-LAST between 1024 and 65535, for example 18100-18999")


def networks(name: str) -> list[IPv4Network | IPv6Network]:
    """Return comma-separated networks or single addresses."""
    try:
        return [ip_network(word) for word in words(name)]
    except ValueError as error:
        raise BadSetting(f"{name}={text(name)}: {error}; allowed are networks such as 10.0.0.0/8,fd00::/8") from None


def http_url(name: str) -> str:
    """Return the URL without its last slash; empty if the variable is not set."""
    value = text(name)
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if value and (not usable or parts.username is not None or parts.query or parts.fragment):
        raise BadSetting(f"{name}: allowed is http[s]://HOST[:PORT][/PATH], without user, query and fragment")
    return value.rstrip("/")


def seconds(name: str, default: int) -> int:
    value = text(name)
    if not value:
        return default
    if value.isdecimal() and len(value) < 10:
        return int(value)
    raise BadSetting(f"{name}={value}: allowed are whole seconds, 0 to 999999999")


def database(name: str, default: str) -> dict[str, object]:
    """Return Django's DATABASES entry for a URL: sqlite:///absolute/path or
    postgresql://user:password@host:port/name."""
    try:
        parts = urlsplit(text(name, default))
        port = str(parts.port or "")
    except ValueError:  # The error's text may hold the password.
        raise BadSetting(f"{name}: not a URL with a port of 0 to 65535") from None
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path),
            "OPTIONS": {
                # Writers wait at BEGIN instead of failing in the middle of a transaction.
                "transaction_mode": "IMMEDIATE",
                "timeout": 10,
                "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;",
            },
        }
    if parts.scheme in {"postgresql", "postgres"}:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": port,
            "CONN_HEALTH_CHECKS": True,
        }
    raise BadSetting(
        f"{name}={parts.scheme}://…: allowed are sqlite:///PATH and postgresql://USER:PASSWORD@HOST:PORT/NAME"
    )


def time_zone(name: str) -> str:
    value = text(name, "UTC")
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSetting(f"{name}={value}: allowed are time zones such as UTC and Europe/Berlin") from None
    return value
