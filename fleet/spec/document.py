"""Fleet documents as text: YAML or JSON of limited size. Pure."""

from typing import Any

import yaml

from router.contract.values import strict_text
from router.contract.values.strict_text import UnreadableDocument

__all__ = ["UnreadableDocument", "dump", "load", "load_json"]

LIMIT_BYTES = 256_000  # PyYAML reads about 200 kB a second; 200 pools take 50 kB


def load(text: str) -> Any:
    """Parse YAML. Raise UnreadableDocument. `on` and `yes` stay text, as a pool may have such a name."""
    _check_size(text)
    return strict_text.load_yaml(text, words_as_text=True)


def load_json(text: str) -> Any:
    """Parse JSON as strictly as `load` parses YAML (YAML 1.1 would read 1e3 as text)."""
    _check_size(text)
    return strict_text.load_json(text)


def _check_size(text: str) -> None:
    size = len(text.encode())
    if size > LIMIT_BYTES:
        raise UnreadableDocument(f"the document has {size:,} bytes; allowed: {LIMIT_BYTES:,}")


def dump(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
