"""Text → document: YAML or JSON, refusing what their readers let pass: keys given twice, aliases, any size. Pure."""

import json
from typing import Any

import yaml

from router.contract.strict_json import unique_keys
from router.contract.strict_yaml import UniqueLoader

LIMIT_BYTES = 256_000  # PyYAML reads about 200 kB a second; 200 pools take 50 kB
DEPTH_LIMIT = 50


class UnreadableDocument(ValueError):
    """Not a document at all; the message says where."""


class _Loader(UniqueLoader):
    """It refuses aliases as well, and what is nested beyond reason."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None,
                None,
                "aliases (*name) are not allowed",
                self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise yaml.constructor.ConstructorError(None, None, f"nested deeper than {DEPTH_LIMIT}", None)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _plain(first: str, tag: str) -> bool:
    return tag == "tag:yaml.org,2002:timestamp" or (tag == "tag:yaml.org,2002:bool" and first in "yYnNoO")


# `on`, `off`, `yes` and `no` stay text, and so do dates: YAML 1.1 would turn a pool named `on` into a boolean.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not _plain(first, tag)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str) -> Any:
    """UnreadableDocument with line and column when it is not YAML, too large, or says something twice."""
    _check_size(text)
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableDocument(f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableDocument(str(error) or "nested too deeply") from None


def load_json(text: str) -> Any:
    """As `load`, of JSON (YAML 1.1 would read 1e3 as text)."""
    _check_size(text)
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise UnreadableDocument(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        raise UnreadableDocument(str(error) or "nested too deeply") from None


def _check_size(text: str) -> None:
    size = len(text.encode())
    if size > LIMIT_BYTES:
        raise UnreadableDocument(f"the document has {size:,} bytes; allowed are {LIMIT_BYTES:,}")


def dump(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
