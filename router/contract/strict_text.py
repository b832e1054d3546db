"""JSON and YAML without surprises: duplicate keys, aliases and deep nesting are refused, with line and column."""

import json
from collections.abc import Hashable, Iterable
from typing import Any

import yaml

DEPTH_LIMIT = 50


class UnreadableDocument(ValueError):
    """The text is not a document; the message says where and why."""


def load_json(text: str) -> Any:
    """UnreadableDocument."""
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise UnreadableDocument(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        raise UnreadableDocument(str(error) or "nested too deeply") from None


def unique_keys(pairs: Iterable[tuple[Hashable, Any]]) -> dict[Any, Any]:
    """For `json.loads(…, object_pairs_hook=unique_keys)`, which keeps the last of equal keys. ValueError names it."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def load_yaml(text: str, *, words_as_text: bool = False) -> Any:
    """UnreadableDocument. `words_as_text`: on, off, yes, no and dates stay text, which YAML 1.1 would convert."""
    try:
        return yaml.load(text, Loader=_WordsAsTextLoader if words_as_text else _StrictLoader)  # noqa: S506 - both safe
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableDocument(f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableDocument(str(error) or "nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases (*name) are not allowed", event.start_mark)
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise _refused(f"nested deeper than {DEPTH_LIMIT}", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refused(f"{key!r} cannot be a key", key_node.start_mark)
            if key in seen:
                raise _refused(f"the key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _WordsAsTextLoader(_StrictLoader):
    pass


def _refused(text: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, text, mark)


def _is_word(first: str, tag: str) -> bool:
    return tag == "tag:yaml.org,2002:timestamp" or (tag == "tag:yaml.org,2002:bool" and first in "yYnNoO")


_WordsAsTextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not _is_word(first, tag)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
