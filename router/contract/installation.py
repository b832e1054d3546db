"""The installation that this process runs from: a clone (or a copy of one), or installed packages."""

import os
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CODE = Path(__file__).resolve().parents[2]  # folder of the packages
IS_CLONE = (CODE / "manage.py").is_file()


def _version() -> str:
    if IS_CLONE:
        return str(tomllib.loads((CODE / "pyproject.toml").read_text())["project"]["version"])
    try:
        return version("weir")
    except PackageNotFoundError:
        return version("weir-router")


VERSION = _version()
BASE = CODE if IS_CLONE else Path(sys.prefix)  # folder for paths that begin with ./
FILES = CODE if IS_CLONE else CODE / "controlplane"  # parent of templates, static, examples and docs
DATA = CODE / "var" if IS_CLONE else Path(os.path.expanduser("~/.local/share/weir"))  # default of WEIR_DATA_DIR
