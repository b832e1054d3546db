"""The API keys file of a standalone router: hashes and limits, as JSON or YAML."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from router.contract.redis.api_keys import BAND_MAX, MARK, ApiKeysValue, PublishedKey
from router.contract.redis.budgets import Per, PublishedBudget
from router.contract.values.problem import Problem
from router.standalone import POOL
from router.standalone.text import BadInput, structure

FLAG = "--keys"
LIMIT_MAX = 1_000_000_000  # per minute
NAME_MAX = 80
FIELDS = (
    *("name", "sha256", "requests_per_min", "tokens_per_min", "tokens_per_day", "tokens_per_month"),
    *("models", "expires_at", "priority", "priority_max", "trusted"),
)
BUDGET_MAX = 10**15
PERS: tuple[Per, ...] = ("day", "month")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeysFile:
    path: str
    modified_at: float  # s, Unix
    value: ApiKeysValue
    trusted: frozenset[str] = frozenset()  # names of keys that may steer engines
    salt_by_key: bool = False  # the engines cache separately for each key

    @property
    def count(self) -> int:
        return len(self.value.keys)


def read_keys(path: Path) -> KeysFile:
    made = structure(FLAG, path)
    try:
        value = _value(made)
    except _Wrong as error:
        raise BadInput(f"{FLAG} {path}", error.problem) from None
    return KeysFile(str(path), path.stat().st_mtime, value, _trusted(made), made.get("salt_by_key", False))


class _Wrong(Exception):
    def __init__(self, path: str, value: Any, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(path, value, message, allowed)


def _value(made: Any) -> ApiKeysValue:
    if not isinstance(made, dict) or not isinstance(made.get("keys"), list):
        raise _Wrong(
            "keys", made, "not a list", "`keys:` with a list of keys, and `required: false` to serve others too"
        )
    _known("", made, ("keys", "required", "salt_by_key", *(f"tokens_per_{per}" for per in PERS)))
    required = made.get("required", True)
    for field in ("required", "salt_by_key"):
        if not isinstance(made.get(field, True), bool):
            raise _Wrong(field, made[field], "neither true nor false")
    entries = [_entry(f"keys[{place}]", each) for place, each in enumerate(made["keys"])]
    for field in ("name", "sha256"):
        given = [getattr(entry, field) for entry in entries]
        twice = next((value for value in given if given.count(value) > 1), None)
        if twice is not None:
            raise _Wrong(f"keys[{given.index(twice)}].{field}", twice, f"two keys have the same {field}")
    of_pool = tuple(_budgets("", "", made))
    return ApiKeysValue(
        keys=tuple(entries),
        required=frozenset("*" if required else ()),
        pool_budgets={POOL: of_pool} if of_pool else {},
    )


def _trusted(made: Any) -> frozenset[str]:
    return frozenset(key["name"] for key in made["keys"] if key.get("trusted"))


def _known(where: str, given: dict[Any, Any], allowed: tuple[str, ...]) -> None:
    for name, value in given.items():
        if name not in allowed:
            raise _Wrong(f"{where}.{name}".lstrip("."), value, "unknown key", ", ".join(allowed))


def _entry(where: str, given: Any) -> PublishedKey:
    if not isinstance(given, dict):
        raise _Wrong(where, given, "not a key", f"a map of {', '.join(FIELDS)}")
    _known(where, given, FIELDS)
    name = given.get("name")
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= NAME_MAX:
        raise _Wrong(f"{where}.name", name, "not a name", f"text of 1 to {NAME_MAX} characters")
    if not isinstance(given.get("trusted", False), bool):
        raise _Wrong(f"{where}.trusted", given["trusted"], "neither true nor false")
    expires_at = _moment(f"{where}.expires_at", given.get("expires_at"))
    sha256 = _sha256(f"{where}.sha256", given.get("sha256"))
    priority = _band(f"{where}.priority", given.get("priority"), -BAND_MAX, 0)
    return PublishedKey(
        id=name,
        name=name,
        sha256=sha256,
        models=_models(f"{where}.models", given.get("models")),
        requests_per_min=_limit(f"{where}.requests_per_min", given.get("requests_per_min")),
        tokens_per_min=_limit(f"{where}.tokens_per_min", given.get("tokens_per_min")),
        expires_at=expires_at,
        priority=priority,
        priority_max=_band(f"{where}.priority_max", given.get("priority_max"), priority, max(priority, 0)),
        budgets=tuple(_budgets(where, name, given)),
    )


def _budgets(where: str, name: str, given: dict[Any, Any]) -> Iterator[PublishedBudget]:
    for per in PERS:
        limit = _limit(f"{where}.tokens_per_{per}".lstrip("."), given.get(f"tokens_per_{per}"), BUDGET_MAX)
        if limit is not None:
            yield PublishedBudget(id=f"{name}:{per}", unit="tokens", per=per, limit=limit)


def _sha256(where: str, given: Any) -> str:
    if isinstance(given, str) and given.startswith(MARK.decode()):
        raise _Wrong(where, f"{MARK.decode()}…", "a key itself", "only its hash: printf %s KEY | sha256sum")
    if not isinstance(given, str) or not _SHA256.fullmatch(given.lower()):
        raise _Wrong(where, given, "not a hash", "64 hexadecimal digits: printf %s KEY | sha256sum")
    return given.lower()


def _models(where: str, given: Any) -> frozenset[str]:
    if given is None or (isinstance(given, list) and all(isinstance(name, str) and name for name in given)):
        return frozenset(given or ())
    raise _Wrong(where, given, "not a list of models", "names that its requests may ask for; none: every one")


def _limit(where: str, given: Any, most: int = LIMIT_MAX) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= most):
        return given
    raise _Wrong(where, given, "not a limit", f"a whole number from 1 to {most:,}")


def _band(where: str, given: Any, least: int, default: int) -> int:
    if given is None:
        return default
    if isinstance(given, int) and not isinstance(given, bool) and least <= given <= BAND_MAX:
        return given
    raise _Wrong(where, given, "not a priority", f"a whole number from {least} to {BAND_MAX}")


def _moment(where: str, given: Any) -> float | None:
    """Return a date or time as Unix seconds, in UTC unless it has a time zone."""
    try:
        found = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        found = False
    if isinstance(found, date) and not isinstance(found, datetime):
        found = datetime.combine(found, time())
    if isinstance(found, datetime):
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    if found is None:
        return None
    raise _Wrong(where, given, "not a time", "like 2027-01-31T12:00:00Z")
