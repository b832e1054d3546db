"""One fingerprint of the code that computes simulated results: every module that the twin imports, directly or not.
Results with the same fingerprint and the same inputs are equal. No list of folders and no manual version is needed: a
module on which a result depends is imported by one that is already included.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from router.contract import installation

# Modules that compute the result of a preview, of a tuning and of an experiment, and the engines that they simulate.
ROOTS = (
    "controlplane.evidence.experiments.results.statistics.comparison",
    "controlplane.evidence.experiments.results.statistics.verdicts",
    "controlplane.evidence.plan.planned",
    "controlplane.evidence.previews.analysis.compute",
    "controlplane.evidence.previews.analysis.trust",
    "controlplane.evidence.tuning.compute",
    "controlplane.evidence.twin.pool_model",
    "controlplane.evidence.twin.simulation.simulate",
)

IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^#\n]*))", re.M)
NAME = re.compile(r"(?:^|[,(])\s*([\w.]+)")  # does not match the name after `as`
COMMENT = re.compile(r"#.*")


@cache
def source_sha256() -> str:
    """Return the hash of this installation's code, which needs no repository and is equal for equal code."""
    base = installation.CODE
    return sha256_of({str(path.relative_to(base)): path.read_bytes() for path in reached(ROOTS, base).values()})


def sha256_of(sources: dict[str, bytes]) -> str:
    """Hash the sources, given by path."""
    digest = hashlib.sha256()
    for path, source in sorted(sources.items()):
        digest.update(path.encode() + b"\0" + hashlib.sha256(source).digest())
    return digest.hexdigest()


def reached(roots: Iterable[str], base: Path) -> dict[str, Path]:
    """Return the modules below `base` that importing the roots executes, by name."""
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
    """Return the path; None if the name belongs to a library, or to something inside a module."""
    if not name:
        return None
    folder = base.joinpath(*name.split("."))
    return next((path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Yield imports by a text search, because parsing 240 modules would delay the first preview after a start by 0.75
    s."""
    for module, names, modules in IMPORT.findall(path.read_text()):
        if module:
            yield module
            yield from (f"{module}.{name}" for name in NAME.findall(COMMENT.sub("", names)))
        else:
            yield from NAME.findall(modules)
