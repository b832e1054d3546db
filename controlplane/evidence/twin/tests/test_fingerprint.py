"""The fingerprint of simulated results depends on all code that computes them, wherever it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from controlplane.evidence.twin import fingerprint

CONSTANT = re.compile(rb"^[A-Z][A-Z_]+(?:: [^=]+)? = (\d)", re.M)
PACKAGES = (
    "controlplane.evidence.experiments.results",
    "controlplane.evidence.previews.analysis",
    "controlplane.evidence.tuning",
    "controlplane.evidence.twin.simulation",
    "fleet.calibration",
    "fleet.engine",
    "fleet.engine.dwdp",
    "fleet.kinds",
    "fleet.simengine",
    "router.policy",
    "router.pool",
    "router.prefix",
)


@pytest.fixture(scope="module")
def sources() -> dict[str, bytes]:
    found = fingerprint.reached(fingerprint.ROOTS, settings.BASE_DIR)
    return {name: path.read_bytes() for name, path in found.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_changed_constant_changes_the_fingerprint(package, sources):
    within = [name for name in sources if name.startswith(package) and CONSTANT.search(sources[name])]
    assert within, f"nothing of {package} is reached by the twin's imports"
    for name in within:
        changed = CONSTANT.sub(lambda found: found.group()[:-1] + b"123456789", sources[name], count=1)
        assert changed != sources[name]
        assert fingerprint.sha256_of(sources | {name: changed}) != fingerprint.sha256_of(sources)


def test_pages_and_routes_are_not_part_of_the_fingerprint(sources):
    assert not [name for name in sources if name.endswith((".views", ".urls")) or ".api." in name]


def test_the_modules_found_in_text_are_those_of_the_syntax_tree(sources):
    def imported(text: bytes) -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))

    for name, path in fingerprint.reached(fingerprint.ROOTS, settings.BASE_DIR).items():
        assert sorted(fingerprint._imports(path)) == sorted(imported(sources[name])), name


def test_the_fingerprint_is_that_of_the_files(sources):
    assert fingerprint.source_sha256() == fingerprint.source_sha256()
    assert re.fullmatch("[0-9a-f]{64}", fingerprint.source_sha256())


def test_a_module_is_reached_through_packages_and_the_names_imported_from_them(tmp_path: Path):
    for path, text in {
        "a/__init__.py": "import b.two\n",
        "a/one.py": "def late():\n    from b import (\n        three as four,  # (why), four\n    )\n",
        "b/__init__.py": "",
        "b/two.py": "import json\n",
        "b/three.py": "",
        "b/four.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert sorted(fingerprint.reached(["a.one"], tmp_path)) == ["a", "a.one", "b", "b.three", "b.two"]
