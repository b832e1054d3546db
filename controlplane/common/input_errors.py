"""Pydantic's errors as problems, worded like all other checks."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from router.contract.values.problem import Problem

_WHOLE, _NUMBER, _TEXT, _FLAG = "must be a whole number", "must be a number", "must be text", "must be true or false"
_LIST, _MAPPING = "must be a list", "must be a mapping"
_TIME = "must be a date and time with its zone, such as 2026-11-23T12:00:00Z"
_RANGE, _SHORT, _LONG = "out of range", "too short", "too long"
_FEW, _MANY = "too few items", "too many items"

# Type of pydantic's error → (what is wrong, what is allowed), formatted with the error's context
WORDS: dict[str, tuple[str, str]] = {
    "missing": ("must be given", ""),
    "extra_forbidden": ("unknown field", ""),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), (_WHOLE, "")),
    **dict.fromkeys(("float_type", "float_parsing"), (_NUMBER, "")),
    "finite_number": ("must be a finite number", ""),
    "greater_than": (_RANGE, "more than {gt}"),
    "greater_than_equal": (_RANGE, "at least {ge}"),
    "less_than": (_RANGE, "less than {lt}"),
    "less_than_equal": (_RANGE, "at most {le}"),
    "string_type": (_TEXT, ""),
    "string_too_short": (_SHORT, "a length of at least {min_length}"),
    "string_too_long": (_LONG, "a length of at most {max_length}"),
    "string_pattern_mismatch": ("must match the pattern {pattern}", ""),
    **dict.fromkeys(("bool_type", "bool_parsing"), (_FLAG, "")),
    **dict.fromkeys(("literal_error", "enum"), ("must be {expected}", "")),
    "none_required": ("must be null", ""),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), (_LIST, "")),
    "too_short": (_FEW, "at least {min_length}"),
    "too_long": (_MANY, "at most {max_length}"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), (_MAPPING, "")),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"), (_TIME, "")),
}


def problems_of(error: ValidationError) -> list[Problem]:
    return [problem_of(each, each["loc"]) for each in error.errors(include_url=False)]


def problem_of(error: ErrorDetails, location: Sequence[int | str]) -> Problem:
    """Convert an error; the location ("arms", 0, "name") becomes the path arms.0.name."""
    # A part that begins with a bar names the variant that was tried.
    path = ".".join(text for part in location if not (text := str(part)).startswith("|"))
    context = _plain(error.get("ctx", {}))
    message, allowed = WORDS.get(error["type"], (_unlisted(error), ""))
    value = None if error["type"] == "missing" else error.get("input")
    return Problem(path, value, message.format_map(context), allowed.format_map(context))


def _plain(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return choices without quotes, and bounds as 1, not 1.0."""
    return {
        name: f"{value:,.15g}" if isinstance(value, int | float) else str(value).replace("'", "")
        for name, value in context.items()
    }


def _unlisted(error: ErrorDetails) -> str:
    """Return the message of one of Weir's own checks, or pydantic's message, with braces escaped."""
    return error["msg"].removeprefix("Value error, ").replace("{", "{{").replace("}", "}}")


def different(items: list[Any]) -> list[Any]:
    """Check that the items of a list differ, as a validator for pydantic."""
    if len(set(items)) < len(items):
        raise ValueError("each may occur once")
    return items
