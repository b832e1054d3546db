"""The values that a share may show: numbers, known words, names of things, and sentences built from these. Pure. A kind
is a function from a value to its form in a share. Fields without a kind are not shown, nor are texts that their kind
does not expect.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

from controlplane.people.notices.wordless import NAME

Kind = Callable[[Any], Any]

NUMBER = r"[0-9][0-9,.]*(?:e[+-]?[0-9]+)?"
WITHHELD = "see Weir"  # replaces text written by a person, an engine or an exception


def number(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else None


def word(known: Collection[str]) -> Kind:
    return lambda value: value if isinstance(value, str) and value in known else ""


def fits(pattern: str) -> Kind:
    """Accept a text that matches the pattern as a whole."""
    matches = re.compile(pattern).fullmatch
    return lambda value: value if isinstance(value, str) and matches(value) else ""


def parts(between: str, pattern: str) -> Kind:
    """Accept the parts of a text that match the pattern."""
    part = fits(pattern)
    return lambda value: between.join(filter(None, map(part, str(value).split(between))))


name = fits(NAME)


def withheld(value: Any) -> str:
    """Show whether there is a text, but not the text itself."""
    return WITHHELD if value else ""


def nothing(value: Any) -> str:
    """Show an empty text, where pages expect one."""
    return ""


def record(**fields: Kind) -> Kind:
    return lambda value: {key: kind(value[key]) for key, kind in fields.items() if key in value}


def rows(kind: Kind) -> Kind:
    return lambda value: [kind(item) for item in value]


def table(**columns: Kind) -> Kind:
    """Show columns of equal length."""
    return lambda value: {key: [kind(cell) for cell in value[key]] for key, kind in columns.items() if key in value}


def by(key: Kind, kind: Kind) -> Kind:
    """Show a mapping without the entries whose key is not of the given kind."""
    return lambda value: {found: kind(item) for found, item in value.items() if found and key(found) == found}
