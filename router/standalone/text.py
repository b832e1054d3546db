"""The files that a router alone is told to read: text, JSON, or YAML where the name ends in .yaml or .yml.

BadInput    its message is the one line that the operator gets: where, what was given, what is allowed
"""

import json
from pathlib import Path
from typing import Any

from router.contract.strict_json import unique_keys

YAML = (".yaml", ".yml")


class BadInput(ValueError):
    pass


def text(flag: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise BadInput(f"{flag} {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{flag} {path}: not UTF-8 text") from None


def structure(flag: str, path: Path) -> Any:
    """What it holds; a key that is given twice is refused, as one of the two would silently be lost."""
    given = text(flag, str(path))
    kind, load = ("YAML", _yaml) if path.suffix.lower() in YAML else ("JSON", _json)
    try:
        return load(given)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split()) or "nested too deeply"
        raise BadInput(f"{flag} {path}: not {kind}: {why}") from None


def _json(given: str) -> Any:
    return json.loads(given, object_pairs_hook=unique_keys)


def _yaml(given: str) -> Any:
    import yaml  # only where it is used: a router has no other use for it

    from router.contract.strict_yaml import UniqueLoader

    try:
        return yaml.load(given, UniqueLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(error) from None
