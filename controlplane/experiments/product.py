"""Which product performs an experiment: its version, commit and source."""

import hashlib
import platform
import shutil
import subprocess
from functools import cache

from django.conf import settings

from controlplane.experiments.record import Product
from router.contract.version import VERSION

# What the numbers of a simulation depend on.
COUNTED = (
    "controlplane/experiments",
    "controlplane/traces",
    "controlplane/twin",
    "fleet/engine",
    "router/policy",
    "router/pool",
    "router/prefix",
)


@cache
def product() -> Product:
    return Product(VERSION, _commit(), _source_sha256(), platform.python_version())


def _commit() -> str:
    git = shutil.which("git")
    if git is None or not (settings.BASE_DIR / ".git").exists():
        return ""
    ask = [git, "-C", str(settings.BASE_DIR), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip()


def _source_sha256() -> str:
    digest = hashlib.sha256()
    for folder in COUNTED:
        for path in sorted((settings.BASE_DIR / folder).rglob("*.py")):
            if "tests" not in path.parts:
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
