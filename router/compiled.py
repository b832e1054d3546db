"""Run compiled copies of modules: their sources compiled by mypyc into a separate folder (`make compiled`).
A copy is valid only for the sources and the Python that it was built from. After a change of either, Weir runs the
sources themselves, as it does with WEIR_COMPILED=0.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "router" / ".compiled"
STAMP = "made_of"  # file in a copy's folder with the digest from `made_of`


@dataclass(frozen=True, slots=True)
class CompiledCopy:
    """A package some of whose modules are compiled."""

    package: str
    modules: tuple[str, ...]  # within the package

    @property
    def folder(self) -> Path:
        return FOLDER / self.package

    @property
    def names(self) -> list[str]:
        return [f"{self.package}.{module}" for module in self.modules]

    def made_of(self, root: Path = ROOT) -> str:
        """Return a digest of the package's sources and this Python's binary interface. All sources count, because a
        compiled module depends on the layout of what it imports.
        """
        digest = hashlib.sha256(str(sysconfig.get_config_var("SOABI")).encode())
        sources = root.joinpath(*self.package.split("."))
        for path in sorted(sources.glob("**/*.py")):
            inside = path.relative_to(sources)
            if "tests" not in inside.parts:
                digest.update(str(inside).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def is_valid(self, folder: Path | None = None) -> bool:
        """Return whether the folder holds a copy of these sources for this Python."""
        stamp = (folder or self.folder) / STAMP
        return stamp.is_file() and stamp.read_text() == self.made_of()

    def use(self, folder: Path | None = None) -> bool:
        """Import the modules from this folder from now on. Return False if it has no valid copy, or if one of the
        modules is already imported."""
        folder = folder or self.folder
        if os.environ.get("WEIR_COMPILED") == "0" or not self.is_valid(folder):
            return False
        if any(name in sys.modules for name in self.names):
            return False
        sys.meta_path.insert(0, _Finder(folder))
        return True

    def runs(self) -> bool:
        """Return whether all imported modules come from the copy."""
        files = [sys.modules[name].__file__ or "" for name in self.names if name in sys.modules]
        return bool(files) and all(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files)


class _Finder(MetaPathFinder):
    """Finds the modules of a copy, and the library that they share."""

    def __init__(self, folder: Path) -> None:
        found = {path.relative_to(folder): path for path in folder.rglob(f"*{EXTENSION_SUFFIXES[0]}")}
        self._files: Mapping[str, Path] = {_name(inside): path for inside, path in found.items()}

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        file = self._files.get(name)
        return spec_from_file_location(name, file) if file is not None else None


def _name(inside: Path) -> str:
    return ".".join((*inside.parts[:-1], inside.name.partition(".")[0]))
