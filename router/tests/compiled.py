"""Runs a program with the compiled copy of the router's modules; fails if they are not used.
python -m router.tests.compiled FOLDER MODULE [ARGUMENT…]
"""

import runpy
import sys
from pathlib import Path

from router.request_path import ROUTER

if __name__ == "__main__":
    _, folder, module, *arguments = sys.argv
    if not ROUTER.use(Path(folder).resolve()):
        sys.exit(f"{folder} holds no copy of these sources for this Python")
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        if not ROUTER.runs():
            sys.exit("the sources ran")
