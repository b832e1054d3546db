"""Build two wheels: weir, and weir-router, the router alone with the packages that it imports.

.venv/bin/python deploy/wheel.py [FOLDER] [--compiled]

--compiled: with the compiled copies (deploy/compile.py), which this Python and platform alone can use.
"""

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controlplane.evidence.twin.compiled import COPIES  # noqa: E402 - the path comes first
from router.compiled import FOLDER  # noqa: E402

PROJECT = "pyproject.toml"
FOLDERS = ("controlplane", "docs", "examples", "fleet", "router", "static", "templates")
UNUSED = ("tests", "testing*.py", "__pycache__")
BUILD = """
import sys
from setuptools import build_meta
folder, *options = sys.argv[1:]
build_meta.build_wheel(folder, {"--build-option": options})
"""


def main(folder: Path, *, compiled: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = (ROOT / PROJECT).read_text()
    for copy in COPIES if compiled else ():
        if not copy.is_valid():
            raise SystemExit(f"{copy.folder}: no copy of these sources for this Python: run deploy/compile.py")
    build(folder, FOLDERS, {PROJECT: text, "setup.py": (ROOT / "setup.py").read_text()}, compiled=compiled)
    build(folder, ("router",), {PROJECT: router_alone(tomllib.loads(text))}, compiled=compiled)


def build(folder: Path, folders: tuple[str, ...], files: dict[str, str], *, compiled: bool) -> None:
    """Build in a copy of the sources: in a clone, setuptools would also pack what an earlier build left behind."""
    with tempfile.TemporaryDirectory() as work:
        for name in folders:
            unused = UNUSED if compiled else (*UNUSED, FOLDER.name)
            shutil.copytree(ROOT / name, Path(work, name), ignore=shutil.ignore_patterns(*unused))
        for name, text in (files | {"LICENSE": (ROOT / "LICENSE").read_text()}).items():
            Path(work, name).write_text(text)
        command = [sys.executable, "-c", BUILD, str(folder.resolve()), *(_for_this_python() if compiled else ())]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)


def _for_this_python() -> list[str]:
    tag = sysconfig.get_config_var("SOABI").split("-")
    return [f"--python-tag=cp{tag[1]}", f"--plat-name={sysconfig.get_platform().replace('-', '_').replace('.', '_')}"]


def router_alone(project: dict[str, Any]) -> str:
    """The project of the wheel weir-router."""
    given, distributions = project["project"], packages_distributions()
    needed = {normal(name) for module in imported() for name in distributions.get(module, ())}
    wanted = [line for line in given["dependencies"] if normal(re.split(r"[^\w.-]", line)[0]) in needed]
    return f"""
[build-system]
requires = {json.dumps(project["build-system"]["requires"])}
build-backend = "setuptools.build_meta"
[project]
name = "weir-router"
version = {json.dumps(given["version"])}
description = "Weir's router for fleets of LLM inference engines, without its control plane"
requires-python = {json.dumps(given["requires-python"])}
license = {json.dumps(given["license"])}
dependencies = {json.dumps(wanted)}
scripts = {{weir-router = "router.__main__:main"}}
[tool.setuptools.packages.find]
include = ["router*"]
[tool.setuptools.package-data]
router = ["{FOLDER.name}/router/**/*"]
"""


def imported() -> set[str]:
    """The top-level modules that the router imports."""
    found: set[str] = set()
    for path in (ROOT / "router").rglob("*.py"):
        for node in [] if "tests" in path.parts else ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--compiled", action="store_true")
    main(**vars(parser.parse_args()))
