"""The only place that hides engines' secrets: the values of `environment`, and of secret arguments. Pure.
Without the scope fleet:write, pages and API show documents only in this form; the audit log, previews and lists of
changes always use it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from router.contract.values.problem import Problem
from router.contract.values.secret_text import HIDDEN as HIDDEN
from router.contract.values.secret_text import masked, masked_words

if TYPE_CHECKING:
    from fleet.spec.fleet_spec import PoolSpec

CHANGED = "(hidden, changed)"
MARKS = (HIDDEN, CHANGED)
ENVIRONMENT, ARGUMENTS = "environment", "arguments"
SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def is_secret(name: str) -> bool:
    """Return whether the name of a variable says that it holds a secret."""
    return any(word in name.upper() for word in SECRET)


def shown(value: Any) -> Any:
    """Return a document, a pool, its options or an audit entry, without the secrets of engines."""
    if isinstance(value, Mapping):
        return {name: option_shown(name, part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    return masked(value) if isinstance(value, str) else value


def option_shown(name: str, value: Any) -> Any:
    if name == ENVIRONMENT and isinstance(value, Mapping):
        return {variable: HIDDEN if text else text for variable, text in value.items()}
    if name == ARGUMENTS and isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return masked_words(list(value))
    return shown(value)


def pool_shown(pool: "PoolSpec") -> "PoolSpec":
    return replace(pool, engine=shown(pool.engine))


def change_shown(path: str, old: Any, new: Any) -> tuple[Any, Any]:
    """Return both sides of a change; a variable whose value changed is marked."""
    name = path.rpartition(".")[2]
    before, after = option_shown(name, old), option_shown(name, new)
    if name == ENVIRONMENT and isinstance(old, Mapping) and isinstance(new, Mapping):
        after = {key: CHANGED if key in old and old[key] != new[key] else text for key, text in after.items()}
    return before, after


def masks_left(options: object, path: str) -> list[Problem]:
    """Return problems of a document that was read without its secrets, as its marks would become the values."""
    variables = getattr(options, ENVIRONMENT, None) or {}
    found = [(f"{path}.{ENVIRONMENT}.{name}", text) for name, text in variables.items() if text in MARKS]
    words = getattr(options, ARGUMENTS, None) or ()
    found += [(f"{path}.{ARGUMENTS}[{index}]", word) for index, word in enumerate(words) if HIDDEN in word]
    message = "is the mark of a hidden value, not the value; read the document with the scope fleet:write"
    return [Problem(where, text, message) for where, text in found]


def hidden(manifest: Any) -> Any:
    """Return the manifest with the values of its secret variables ({name, value}) hidden."""
    if isinstance(manifest, Mapping):
        secret = is_secret(str(manifest.get("name", ""))) and manifest.get("value")
        return {key: HIDDEN if secret and key == "value" else hidden(part) for key, part in manifest.items()}
    return [hidden(part) for part in manifest] if isinstance(manifest, list) else manifest
