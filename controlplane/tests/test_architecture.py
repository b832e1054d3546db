"""imports.txt lists every import between packages, and in the control plane between its wings: the allow-list is no
longer than needed. docs/architecture.md describes each package.
"""

import re
from pathlib import Path

import grimp

CODE = Path(__file__).resolve().parents[2]
PACKAGES = ("router", "fleet", "controlplane")


def place(module: str) -> str | None:
    """Return a module's package or wing: `router/policy`, `controlplane/traffic`, `router/*.py` for a module beside
    the packages; None for tests."""
    top, *rest = module.split(".")
    if not rest or "tests" in rest or rest[0].startswith(("testing", "migrations")) or "migrations" in rest:
        return None
    return f"{top}/{rest[0]}" if (CODE / top / rest[0]).is_dir() else f"{top}/*.py"


def actual() -> dict[str, set[str]]:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        here = place(module)
        if here is None:
            continue
        there = {place(imported) for imported in graph.find_modules_directly_imported_by(module)}
        found.setdefault(here, set()).update(package for package in there if package not in (None, here))
    return found


def listed() -> dict[str, set[str]]:
    lines = (Path(__file__).parent / "imports.txt").read_text().splitlines()
    rows = (line.partition(":") for line in lines if not line.startswith("#"))
    return {package: set(imports.split()) for package, _, imports in rows}


def test_the_list_contains_every_import_between_packages_and_no_other() -> None:
    assert listed() == actual()


def rooms(package: str) -> set[str]:
    """Return a wing's packages and its modules beside them; any other package is its own only room."""
    folder = CODE / package
    if not package.startswith("controlplane/") or not folder.is_dir() or package == "controlplane/management":
        return {package}
    inside = {path.name for path in folder.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    beside = any(path.stem != "__init__" for path in folder.glob("*.py"))
    return {f"{package}/{name}" for name in inside} | ({f"{package}/*.py"} if beside else set())


def test_every_package_is_described() -> None:
    text = (CODE / "docs" / "architecture.md").read_text()
    described = re.findall(r"^\| `((?:router|fleet|controlplane)/[^`]+)` \| .+ \|$", text, re.MULTILINE)
    assert set(described) == set().union(*map(rooms, listed()))
