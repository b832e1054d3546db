"""Identifies the Weir that performs an experiment: version, commit, hash of the source."""

import platform
import shutil
import subprocess
from functools import cache

from django.conf import settings

from controlplane.evidence.experiments.record import Product
from controlplane.evidence.twin.fingerprint import source_sha256
from router.contract.installation import VERSION


@cache
def product() -> Product:
    return Product(VERSION, _commit(), source_sha256(), platform.python_version())


def _commit() -> str:
    git = shutil.which("git")
    if git is None or not (settings.BASE_DIR / ".git").exists():
        return ""
    ask = [git, "-C", str(settings.BASE_DIR), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip()
