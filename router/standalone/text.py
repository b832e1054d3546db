"""The files of a standalone router: text, JSON, or YAML where the name ends in .yaml or .yml.

BadInput    one line for the operator: option and file, then what is wrong
"""

from pathlib import Path
from typing import Any

from router.contract.values.problem import Problem
from router.contract.values.strict_text import UnreadableDocument, load_json, load_yaml

YAML = (".yaml", ".yml")


class BadInput(ValueError):
    """Invalid input. `source` is the option, with the file or line."""

    def __init__(self, source: str, wrong: Problem | str) -> None:
        super().__init__(f"{source}: {wrong}")


def text(flag: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise BadInput(f"{flag} {path}", error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise BadInput(f"{flag} {path}", "not UTF-8 text") from None


def structure(flag: str, path: Path) -> Any:
    given = text(flag, str(path))
    kind, load = ("YAML", load_yaml) if path.suffix.lower() in YAML else ("JSON", load_json)
    try:
        return load(given)
    except UnreadableDocument as error:
        raise BadInput(f"{flag} {path}", f"not {kind}: {' '.join(str(error).split())}") from None
