"""Compiles the engine for fits to traffic (fleet/engine/compiled.py); needs a C compiler and Python's headers.

.venv/bin/python deploy/compile_engine.py [FOLDER]
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fleet.engine.compiled import FOLDER, MODULES, STAMP, made_of  # noqa: E402 - the path comes first


def compile_engine(folder: Path) -> None:
    """The folder is complete or, after an error, without a stamp."""
    from mypyc.build import mypycify
    from setuptools import setup

    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(ROOT / "fleet", f"{work}/fleet", ignore=shutil.ignore_patterns("tests", "__pycache__"))
        os.chdir(work)  # mypy and setuptools read the settings of the project that they run in
        extensions = mypycify(["--follow-imports=silent", *(f"fleet/engine/{name}.py" for name in MODULES)])
        arguments = ["--quiet", "build_ext", f"--build-lib={folder}"]
        setup(name="weir-engine", packages=[], ext_modules=extensions, script_args=arguments)
    (folder / STAMP).write_text(made_of())


if __name__ == "__main__":
    compile_engine(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER)
