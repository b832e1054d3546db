"""Files of a pipeline: JSON, policies, and the differences between two of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api import Api, Failed, quoted, short


def read_json(name: str) -> Any:
    text = sys.stdin.read() if name == "-" else text_of(name)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failed(f"{name}: not JSON: {error}") from None


def text_of(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def write(name: str, data: bytes) -> None:
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise Failed(f"{name}: {error.strerror or error}") from None


def put_out(name: str, data: bytes) -> None:
    """Write the data to the named file, or to standard output without a name."""
    if name:
        write(name, data)
    else:
        sys.stdout.write(data.decode())


@dataclass(frozen=True)
class VersionAnswer:
    """A version of a policy, as REST returns it."""

    policy: str
    number: int
    document: Any
    by: str = ""  # user who published it, and the reason

    @classmethod
    def of(cls, found: Any) -> VersionAnswer:
        by = f"v{found['number']} by {found['actor']['name']} ({found['reason']})"
        return cls(found["policy"], found["number"], found["document"], by)

    def as_file(self) -> str:
        kept = {"policy": self.policy, "version": self.number, "document": self.document}
        return json.dumps(kept, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class DraftAnswer:
    document: Any
    updated_by: str


@dataclass(frozen=True)
class PolicyAnswer:
    name: str
    live: VersionAnswer
    draft: DraftAnswer | None

    @classmethod
    def of(cls, api: Api, name: str) -> PolicyAnswer:
        found = api.get(f"/policies/{quoted(name)}")
        held = found["draft"]
        draft = None if held is None else DraftAnswer(held["document"], held["updated_by"])
        return cls(found["name"], VersionAnswer.of(found["live"]), draft)

    @property
    def path(self) -> str:
        return f"/policies/{quoted(self.name)}"


@dataclass(frozen=True)
class DraftedFile:
    version: VersionAnswer  # version with the file's document, from which the draft was made
    whole: dict[str, Any]  # the content as read; unknown fields are kept when the file is written again

    @classmethod
    def read(cls, name: str) -> DraftedFile:
        found = read_json(name)
        if not isinstance(found, dict) or not isinstance(found.get("policy"), str) or "document" not in found:
            raise Failed(
                f'{name}: a policy file is {{"policy": NAME, "version": N, "document": {{…}}}}: weir policy export'
            )
        if not isinstance(found.get("version"), int):
            raise Failed(
                f"{name}: version: {short(found.get('version'))}: the number of the version that it was made from"
            )
        return cls(VersionAnswer(found["policy"], found["version"], found["document"]), found)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Return (dotted path, old value, new value) of each field that differs; None for a side without a value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def changes_as_text(changes: Iterator[tuple[str, Any, Any]]) -> str:
    return "\n".join(f"  {path}: {short(old)} → {short(new)}" for path, old, new in changes)
