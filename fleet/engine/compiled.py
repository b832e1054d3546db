"""The engine's busiest modules, compiled: the same sources through mypyc, in a folder of their own (`make compiled`).

Fits to traffic replay requests a hundred times and use the copy where there is one. It holds for the very sources and
the Python that it was made of: once one of them has changed, the sources themselves are run, as without a copy.
"""

import hashlib
import sys
import sysconfig
from pathlib import Path

import fleet.engine

# Values of their classes cannot be pickled. The law is not among them: it crosses processes, and is asked once a step.
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
STAMP = "made_of"  # a file in the folder


def made_of() -> str:
    """Of the engine's sources and this Python. A compiled module also knows the layout of what it imports."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for path in sorted(SOURCES.glob("**/*.py")):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def use_compiled(folder: Path = FOLDER) -> bool:
    """Import MODULES from there from now on; False: it holds no copy of these sources, or one of them is imported."""
    stamp = folder / STAMP
    if not stamp.is_file() or stamp.read_text() != made_of():
        return False
    if any(f"fleet.engine.{name}" in sys.modules for name in MODULES):
        return False
    sys.path.append(str(folder))  # the modules share a library there
    fleet.engine.__path__.insert(0, str(folder / "fleet" / "engine"))
    return True
