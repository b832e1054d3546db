"""Checks shared by all sections of a document. Pure."""

from collections.abc import Callable, Collection, Mapping

from router.contract.values.fields import suggestion
from router.contract.values.problem import Problem


class Problems(list[Problem]):
    """The problems found so far; each check adds to them."""

    def note(self, path: str, value: object, message: str, allowed: str = "") -> None:
        self.append(Problem(path, value, message, allowed))

    def mapping(self, path: str, value: object) -> Mapping[str, object]:
        """Return the value if it is a mapping, otherwise an empty one."""
        if isinstance(value, Mapping):
            return value
        self.note(path, value, "must be a mapping")
        return {}

    def keys(self, path: str, given: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
        """Return the given keys that are known."""
        for name in given:
            if name not in known:
                message = f"unknown key{suggestion(name, tuple(known))}"
                self.note(f"{path}.{name}" if path else str(name), given[name], message)
        return {name: value for name, value in given.items() if name in known}

    def whole_number(self, path: str, value: object, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self.note(path, value, "must be a whole number", f"0 to {most:,}")

    def distinct(self, path: str, value: object, fits: Callable[[object], bool], items: str) -> None:
        """Check a list for invalid and repeated items; `items` describes them in the message."""
        if not isinstance(value, list) or len(set(map(str, value))) != len(value) or not all(map(fits, value)):
            self.note(path, value, f"must be a list of {items}, each once")


Check = Callable[[str, object, Problems], None]
