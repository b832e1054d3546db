"""JSON and YAML parsed strictly: duplicate keys, aliases and deep nesting are refused, with line and column."""

import json
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import yaml

DEPTH_LIMIT = 50
NODES_LIMIT = 100_000  # limit of YAML nodes; parsing that many takes some seconds of CPU time
NUMBER_CHARS = 80


class UnreadableDocument(ValueError):
    """Text that cannot be parsed as a document; the message says where and why."""


def load_json(text: str) -> Any:
    """Parse JSON. Raise UnreadableDocument."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        check_depth(value)
        return value
    except json.JSONDecodeError as error:
        raise UnreadableDocument(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise UnreadableDocument("nested too deeply") from None
    except ValueError as error:  # such as an integer with thousands of digits
        raise UnreadableDocument(str(error)) from None


def check_depth(value: Any) -> None:
    """Raise ValueError for a document nested deeper than DEPTH_LIMIT, since code that reads it recurses."""
    level = [value]
    for _ in range(DEPTH_LIMIT + 1):
        level = [part for one in level for part in _parts(one)]
        if not level:
            return
    raise ValueError(f"nested deeper than {DEPTH_LIMIT}")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def unique_keys(pairs: Iterable[tuple[Hashable, Any]]) -> dict[Any, Any]:
    """Refuse duplicate keys, as `object_pairs_hook` of `json.loads`, which otherwise keeps the last one. The ValueError
    names the key."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def load_yaml(text: str, *, words_as_text: bool = False) -> Any:
    """Parse YAML. Raise UnreadableDocument. With `words_as_text`, on, off, yes, no and dates stay text, which YAML 1.1
    would convert."""
    try:
        _check_shape(text)
        return yaml.load(text, Loader=_WordsAsTextLoader if words_as_text else _StrictLoader)  # noqa: S506 - both safe
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableDocument(f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableDocument(str(error) or "nested too deeply") from None


_NUMBERS: dict[str, Callable[[Any, Any], int | float]] = {
    "tag:yaml.org,2002:int": yaml.CSafeLoader.construct_yaml_int,
    "tag:yaml.org,2002:float": yaml.CSafeLoader.construct_yaml_float,
}


def _check_shape(text: str) -> None:
    """Check limits on the events of the C parser, before anything recurses into the document."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _refused("aliases (*name) are not allowed", event.start_mark)
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > NODES_LIMIT:
            raise _refused(f"more than {NODES_LIMIT:,} values", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_LIMIT:
            raise _refused(f"nested deeper than {DEPTH_LIMIT}", event.start_mark)


class _StrictLoader(yaml.CSafeLoader):
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

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > NUMBER_CHARS:
            raise _refused(f"a number of more than {NUMBER_CHARS} characters", node.start_mark)
        return _NUMBERS[node.tag](self, node)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Keep sexagesimal numbers as text: YAML 1.1 reads 1:30 as ninety, and parsing a long one would take
        minutes."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return "tag:yaml.org,2002:str" if tag in _NUMBERS and ":" in value else tag


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
for _tag in _NUMBERS:
    _StrictLoader.add_constructor(_tag, _StrictLoader.construct_number)
