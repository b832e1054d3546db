"""Compiles the busiest modules of the router and of the twin (router/compiled.py); needs a C compiler and Python's
headers.

.venv/bin/python deploy/compile.py [PACKAGE of a copy [FOLDER]]
"""

import os
import shutil
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

UNUSED = shutil.ignore_patterns("tests", "__pycache__", ".compiled")
LEVEL = "2"  # its code is also shorter than that of level 1
# Code for errors, which is most of it, lies apart: 6 % fewer misses of the processor's cache for code. As names are
# hidden, modules call each other directly.
APART = ["-freorder-blocks-and-partition", "-fno-plt", "-fvisibility=hidden"]
CACHES = ROOT / "deploy" / "inline_caches"
DEPTH = 10_000  # of mypyc's recursion


def compile_copy(copy: CompiledCopy, folder: Path) -> None:
    """Compile the copy. The folder is complete or, after an error, without a stamp."""
    from mypyc.build import mypycify
    from setuptools import setup

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
        arguments = ["--quiet", "build_ext", f"--build-lib={folder}"]
        setup(name=f"weir-{name}", packages=[], ext_modules=extensions, script_args=arguments)
    os.chdir(before)
    (folder / STAMP).write_text(made_of)


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
    for package in sys.argv[1:2] or copies:
        compile_copy(copies[package], Path(sys.argv[2]).resolve() if sys.argv[2:] else copies[package].folder)
