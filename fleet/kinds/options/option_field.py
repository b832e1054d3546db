"""An option as a field of a form, with conversions between values and text. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from router.contract.values.fields import JOIN, REQUIRED, Field, accept, typed_flag, typed_number
from router.contract.values.problem import Problem

SWITCH = (("true", "on"), ("false", "off"))  # (value, label)


@dataclass(frozen=True, slots=True)
class OptionField:
    option: Field
    name: str  # name of the input element
    value: str  # value as typed
    error: str = ""
    can_be_left_out: bool = True  # True if a choice offers the default in addition to its values
    suggestions: tuple[str, ...] = ()  # existing values offered for a text

    @property
    def hint(self) -> str:
        return " ".join(part for part in (self.option.help, _allowed(self.option), _default(self.option)) if part)

    @property
    def control(self) -> str:
        """Return the kind of input element."""
        if self.option.kind == "bool" or self.option.choices:
            return "select"
        return "lines" if self.option.kind in {"list", "map"} else "line"

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """Return (value, label) of each choice; the empty value leaves the option out."""
        known = (*self.option.choices, *self.option.joined)
        values = SWITCH if self.option.kind == "bool" else tuple((each, each.replace(JOIN, " + ")) for each in known)
        if not self.can_be_left_out:
            return values
        default = self.option.default
        label = dict(SWITCH)[str(default).lower()] if isinstance(default, bool) else default
        return (("", f"default ({label})"), *values)


def _allowed(option: Field) -> str:
    if option.kind == "list":
        return "One per line."
    if option.kind == "map":
        return "NAME=value, one per line."
    if option.minimum is None or option.maximum is None:
        return ""
    return f"{option.minimum:,} to {option.maximum:,}{f' {option.unit}' if option.unit else ''}."


def _default(option: Field) -> str:
    if option.default in (None, REQUIRED, "", ()) or option.choices or option.kind == "bool":
        return ""
    is_number = isinstance(option.default, int | float)
    return f"Default: {option.default:,}." if is_number else f"Default: {option.default}."


def shown_in(option: Field, value: Any) -> str:
    """Return the value as its form shows it."""
    cleaned = accept(option, value) if option.groups else value
    return shown(value if isinstance(cleaned, Problem) else cleaned)


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "\n".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)


def typed_value(option: Field, text: str) -> Any:
    """Convert typed text to a value of the option: None if empty, the text itself if it cannot be read."""
    text = text.replace("\r\n", "\n").strip()
    return _READERS[option.kind](text) if text else None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _names(text: str) -> Any:
    pairs = [line.partition("=") for line in _lines(text)]
    if any(not equals for _, equals, _ in pairs):
        return text
    return {name.strip(): value.strip() for name, _, value in pairs}


_READERS: dict[str, Callable[[str], Any]] = {
    "int": typed_number,
    "float": typed_number,
    "bool": typed_flag,
    "text": str,
    "list": _lines,
    "map": _names,
}
