"""Compiles the busiest modules of the router and of the twin (router/compiled.py); needs a C compiler and Python's
headers.

.venv/bin/python deploy/compile.py [--train] [PACKAGE of a copy [FOLDER]]

--train: compile the router twice, with gcc. The first copy serves requests and counts how often each branch is taken,
which tells the second how to lay out its code: 2 to 7 % less CPU per unary request, for twice the time.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controlplane.evidence.twin.compiled import COPIES  # noqa: E402 - the path comes first
from deploy.bound_names import bound  # noqa: E402
from router.compiled import STAMP, CompiledCopy  # noqa: E402
from router.request_path import ROUTER  # noqa: E402

UNUSED = shutil.ignore_patterns("tests", "__pycache__", ".compiled")
LEVEL = "2"  # its code is also shorter than that of level 1
# Code for errors, which is most of it, lies apart: 6 % fewer misses of the processor's cache for code. As names are
# hidden, modules call each other directly.
APART = ["-freorder-blocks-and-partition", "-fno-plt", "-fvisibility=hidden"]
CACHES = ROOT / "deploy" / "inline_caches"
DEPTH = 10_000  # of mypyc's recursion
TRAIN = "--train"
TRAINED_S = 300  # longest training run
COUNTING, COUNTED = ["-fprofile-generate"], ["-fprofile-use", "-Wno-missing-profile"]


def compile_copy(copy: CompiledCopy, folder: Path, *, trains: bool = False) -> None:
    """Compile the copy. The folder is complete or, after an error, without a stamp."""
    from mypyc.build import mypycify

    shutil.rmtree(folder, ignore_errors=True)
    made_of, before = copy.made_of(), Path.cwd()
    with tempfile.TemporaryDirectory() as work:
        for name in ("controlplane", "fleet", "router"):
            shutil.copytree(ROOT / name, f"{work}/{name}", ignore=UNUSED)
        os.chdir(work)  # mypy and setuptools read the settings of the project that they run in
        Path("mypy.ini").write_text("[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n")
        name = copy.package.replace(".", "_")
        files = [f"{module.replace('.', '/')}.py" for module in copy.names]
        for file in files:
            Path(file).write_text(bound(Path(file).read_text(), copy.names, ROOT))
        extensions = mypycify(files, opt_level=LEVEL, debug_level="0", multi_file=True, group_name=name)
        for extension in extensions:
            extension.extra_compile_args += APART
            add_caches(extension)
        _compile_in_parallel()
        is_trained = trains and _train(name, extensions, Path(work, "counting"), made_of)
        _build(name, extensions, folder, COUNTED if is_trained else [])
    os.chdir(before)
    (folder / STAMP).write_text(made_of)


def _train(name: str, extensions: list[Any], folder: Path, made_of: str) -> bool:
    """Let a copy that counts how often each branch is taken serve requests. The counts are written beside the objects,
    where the next build reads them. Return False if this compiler cannot count, or if the copy failed."""
    try:
        _build(name, extensions, folder, COUNTING)
    except SystemExit:
        return False
    (folder / STAMP).write_text(made_of)
    served = [sys.executable, "-m", "router.tests.compiled", folder, "router.tests.socketless", "all", "400", "--train"]
    try:
        done = subprocess.run(served, cwd=ROOT, check=False, timeout=TRAINED_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and any(Path().rglob("*.gcda"))


def _build(name: str, extensions: list[Any], folder: Path, flags: list[str]) -> None:
    from setuptools import setup

    for extension in extensions:
        extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag not in COUNTING] + flags
        extension.extra_link_args = flags
    arguments = ["--quiet", "build_ext", f"--build-lib={folder}"]
    setup(name=f"weir-{name}", packages=[], ext_modules=extensions, script_args=arguments)


def add_caches(extension: Any) -> None:
    """Let the code of modules look names up by way of caches, which mypyc's own library stays without."""
    own = [Path(name) for name in extension.sources if Path(name).name.startswith("__native")]
    for source in own:
        source.write_text(f'#include "{CACHES}.h"\n{source.read_text()}')
    extension.sources += [f"{CACHES}.c"] * bool(own)


def _compile_in_parallel() -> None:
    """Make setuptools compile the files of a library on all cores."""
    from distutils.ccompiler import CCompiler  # setuptools' own, once it is imported

    def compile_all(compiler: Any, sources: list[str], *given: Any, **named: Any) -> list[str]:
        with ThreadPool(len(os.sched_getaffinity(0))) as pool:
            made = pool.map(lambda source: plain(compiler, [source], *given, **named), sources)
            return [name for names in made for name in names]

    plain, CCompiler.compile = CCompiler.compile, compile_all  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.setrecursionlimit(DEPTH)
    copies = {copy.package: copy for copy in COPIES}
    trains, given = TRAIN in sys.argv, [word for word in sys.argv[1:] if word != TRAIN]
    for package in given[:1] or copies:
        folder = Path(given[1]).resolve() if given[1:] else copies[package].folder
        compile_copy(copies[package], folder, trains=trains and package == ROUTER.package)
