"""Runs the engine's busiest modules compiled: the same sources through mypyc, in a folder of their own (`make
compiled`).

Fits to traffic replay requests a hundred times and use the compiled copy if there is one. The copy is valid only for
the sources and the Python that it was made from; after a change of either, the sources themselves run.
"""

import hashlib
import sys
import sysconfig
from pathlib import Path

import fleet.engine

# Instances of their classes cannot be pickled. The law is left out: it crosses processes, and runs once per step.
MODULES = (
    "blocks",
    "decode_run",
    "engine",
    "known_hits",
    "neuron_batches",
    "request",
    "scheduler",
    "whole_prompts",
)
SOURCES = Path(__file__).resolve().parent
FOLDER = SOURCES.parents[1] / ".compiled"
STAMP = "made_of"  # name of the file in the folder that holds `made_of`


def made_of() -> str:
    """Return a digest of the engine's sources and this Python. All sources count, as a compiled module depends on the
    layout of what it imports."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for path in sorted(SOURCES.glob("**/*.py")):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def use_compiled(folder: Path = FOLDER) -> bool:
    """Import MODULES from the folder from now on. False if it has no copy of these sources, or one of them is imported
    already."""
    stamp = folder / STAMP
    if not stamp.is_file() or stamp.read_text() != made_of():
        return False
    if any(f"fleet.engine.{name}" in sys.modules for name in MODULES):
        return False
    sys.path.append(str(folder))  # holds the library that the modules share
    fleet.engine.__path__.insert(0, str(folder / "fleet" / "engine"))
    return True
