"""Serves static files from Python wheels: Plotly as vendor/plotly.min.js, without a copy in the repository."""

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

PREFIX = "vendor"
FILES = ("plotly.min.js",)


def plotly_folder() -> Path:
    """Return the folder of the bundle in the wheel, without importing the package, which would take half a second."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the plotly package is not installed")
    return Path(spec.origin).parent / "package_data"


class VendorFinder(BaseFinder):
    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        found = [str(plotly_folder() / name) for name in FILES if path == f"{PREFIX}/{name}"]
        if find_all:
            return found
        return found[0] if found else []  # like Django's own finders, as None would count as a match

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, FileSystemStorage]]:
        storage = FileSystemStorage(location=plotly_folder())
        storage.prefix = PREFIX  # type: ignore[attr-defined]  # the convention of django.contrib.staticfiles
        for name in FILES:
            yield name, storage
