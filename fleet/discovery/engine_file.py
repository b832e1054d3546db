"""A file as a source, in the format of Prometheus' file_sd: a list of {targets, labels}, as JSON or YAML. It is read
again after a change. Errors do not quote its content, because the path may name any file. Only files in places allowed
by administrators may be named; otherwise the answer would reveal what exists at any path.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from fleet.discovery.answer import SourceAway
from fleet.kinds.external import EXTERNAL
from fleet.kinds.listed import ListedEngine
from fleet.spec import allow_lists
from router.contract.values import strict_text

LARGEST = 1024 * 1024  # bytes
UNTOLD = (
    f"it cannot be read as a list of {{targets, labels}}, a JSON or YAML file of at most {LARGEST} bytes. "
    "What is wrong with it is told where WEIR_ALLOWED_FOLDERS is set"
)
_RULE = "must be a list of {targets: [host:port], labels: {name: text}}"


@dataclass(slots=True)
class EngineFile:
    path: str
    scheme: str = "http://"  # scheme for targets without one
    stamp: tuple[int, int, int] = (0, 0, 0)  # inode, modification time and size when it was read
    found: list[ListedEngine] = field(default_factory=list)

    def look(self) -> list[ListedEngine]:
        """Return the listed engines. Raise SourceAway if the file cannot be read or is not a list of engines."""
        try:
            return self._look()
        except (SourceAway, ValueError):  # ValueError: a NUL in the path
            if settings.ALLOWED_FOLDERS:
                raise
            raise SourceAway(UNTOLD) from None

    def _look(self) -> list[ListedEngine]:
        path = os.path.join(settings.BASE_DIR, self.path)
        if allow_lists.refusals(allow_lists.configured(), EXTERNAL, "", {"file": path}, "", os.path.realpath):
            raise SourceAway("the file lies outside the folders that administrators allow (WEIR_ALLOWED_FOLDERS)")
        try:
            stat = os.stat(path)
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if stamp != self.stamp:
                self.found, self.stamp = parse(_read(path), self.scheme), stamp
        except OSError as error:
            raise SourceAway(f"the file cannot be read: {error.strerror or error}") from None
        return self.found

    def close(self) -> None:
        pass


def _read(path: str) -> str:
    if not os.path.isfile(path):
        raise SourceAway("the path is not that of a file")
    with open(path, "rb") as file:
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise SourceAway(f"the file is larger than {LARGEST} bytes")
    return raw.decode(errors="replace")


def parse(text: str, scheme: str = "http://") -> list[ListedEngine]:
    """Parse the list. Raise SourceAway if the text is not one."""
    try:
        groups = strict_text.load_yaml(text, words_as_text=True)
    except strict_text.UnreadableDocument:
        raise SourceAway("the file is neither JSON nor YAML") from None
    if not isinstance(groups, list):
        raise SourceAway(f"the file {_RULE}")
    return [engine for index, group in enumerate(groups) for engine in _engines(group, index, scheme)]


def _engines(group: Any, index: int, scheme: str) -> list[ListedEngine]:
    targets = group.get("targets") if isinstance(group, Mapping) else None
    labels = (group.get("labels") or {}) if isinstance(group, Mapping) else None
    if not isinstance(targets, list) or not isinstance(labels, Mapping) or not all(isinstance(t, str) for t in targets):
        raise SourceAway(f"entry {index} of the file {_RULE}")
    texts = {str(name): str(value) for name, value in labels.items()}
    return [_engine(target if "://" in target else scheme + target, texts) for target in targets]


def _engine(target: str, labels: dict[str, str]) -> ListedEngine:
    url = target.rstrip("/")
    return ListedEngine(key=url[:300], url=url, name=url.partition("://")[2][:253], labels=labels)
