"""YAML in which a key that is given twice is refused: PyYAML keeps the last one silently.

A module of its own: most processes of a router never read YAML.
"""

from collections.abc import Hashable
from typing import Any

import yaml


class UniqueLoader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _error(f"{key!r} cannot be a key", key_node)
            if key in seen:
                raise _error(f"the key {key!r} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _error(text: str, node: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)
