"""A fault in a policy, a fleet document, an experiment or one of the router's files, and its output formats.
This module imports nothing else from Weir, as `router.policy` uses it too.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from router.contract.values.json_value import JsonObject

VALUE_CHARS = 200  # characters of a rejected value in an answer


@dataclass(frozen=True, slots=True)
class Problem:
    path: str  # "spec.pools[0].engine.seed"; empty: the whole document
    value: Any  # the given value
    message: str  # description of the problem
    allowed: str = ""  # accepted values, unless in the message

    @property
    def text(self) -> str:
        return f"{self.message}; allowed: {self.allowed}" if self.allowed else self.message

    def __str__(self) -> str:
        """Format as one line, for the command line and the log."""
        return f"{self.path or 'document'}: {self.text} (got {self.value!r})"


class InvalidInput(ValueError):
    """Refused input, with every problem. REST answers 422 with them; pages show each beside its field."""

    def __init__(self, message: str = "", problems: Iterable[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message or "; ".join(f"{each.path or 'document'}: {each.text}" for each in self.problems))


def invalid(path: str, value: object, message: str, allowed: str = "") -> InvalidInput:
    """Return the exception for one field."""
    problem = Problem(path, value, message, allowed)
    return InvalidInput(problem.text, [problem])


def as_json(problem: Problem) -> JsonObject:
    return {"path": problem.path, "value": shown(problem.value), "message": problem.text}


def by_path(problems: Iterable[Problem]) -> dict[str, str]:
    """Return the first message of each field, for a form."""
    found: dict[str, str] = {}
    for problem in problems:
        found.setdefault(problem.path, problem.text)
    return found


def shown(value: object) -> Any:
    """Shorten a rejected value to valid JSON, without NaN or half a surrogate pair."""
    if isinstance(value, str):
        return value[:VALUE_CHARS].encode("utf-8", "replace").decode()
    plain = value is None or isinstance(value, bool) or (isinstance(value, int) and value.bit_length() <= 53)
    if plain or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (list, dict)) and _is_short(value):
        return value
    return repr(value)[:VALUE_CHARS].encode("utf-8", "replace").decode()


def _is_short(value: object) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= VALUE_CHARS
    except (TypeError, ValueError, RecursionError):
        return False
