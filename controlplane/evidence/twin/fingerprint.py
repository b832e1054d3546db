"""One fingerprint of the code that computes simulated results: of every module that the twin reaches by its imports.

Results with the same fingerprint and the same inputs are equal. It needs no list of folders and no version raised by
hand: a module that a result comes to depend on is imported by one that is in it already.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from router.contract import installation

# What computes the result of a preview, of a tuning and of an experiment, and the engines that they simulate.
ROOTS = (
    "controlplane.evidence.experiments.results.statistics.comparison",
    "controlplane.evidence.experiments.results.statistics.verdicts",
    "controlplane.evidence.previews.analysis.compute",
    "controlplane.evidence.previews.analysis.trust",
    "controlplane.evidence.tuning.compute",
    "controlplane.evidence.twin.pool_model",
    "controlplane.evidence.twin.simulation.simulate",
)

IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^#\n]*))", re.M)
NAME = re.compile(r"(?:^|[,(])\s*([\w.]+)")  # not the one behind `as`
COMMENT = re.compile(r"#.*")


@cache
def source_sha256() -> str:
    """Of this installation; equal where the same code computes, also without a repository."""
    base = installation.CODE
    return sha256_of({str(path.relative_to(base)): path.read_bytes() for path in reached(ROOTS, base).values()})


def sha256_of(sources: dict[str, bytes]) -> str:
    """`sources`: by path."""
    digest = hashlib.sha256()
    for path, source in sorted(sources.items()):
        digest.update(path.encode() + b"\0" + hashlib.sha256(source).digest())
    return digest.hexdigest()


def reached(roots: Iterable[str], base: Path) -> dict[str, Path]:
    """The modules below `base` that importing the roots executes, by name."""
    found: dict[str, Path] = {}
    left = list(roots)
    while left:
        name = left.pop()
        path = _path(name, base)
        if path is None or name in found:
            continue
        found[name] = path
        left += _imports(path)
        left += [name.rpartition(".")[0]]  # a package's __init__ runs first
    return found


def _path(name: str, base: Path) -> Path | None:
    """None for a name that is no module of ours: of a library, or of something inside a module."""
    if not name:
        return None
    folder = base.joinpath(*name.split("."))
    return next((path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """By their text: to parse 240 modules takes the first preview after a start three quarters of a second."""
    for module, names, modules in IMPORT.findall(path.read_text()):
        if module:
            yield module
            yield from (f"{module}.{name}" for name in NAME.findall(COMMENT.sub("", names)))
        else:
            yield from NAME.findall(modules)
