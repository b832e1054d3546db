"""Makes a Python environment for SGLang on a CPU: `python examples/sglang_cpu.py FOLDER SITE_PACKAGES`.

The index has no build of SGLang's kernels for CPUs, and its torchvision is for CUDA. SGLang computes without both
(`--attention-backend torch_native`), but imports them: here are modules of these names that hold nothing and refuse to
compute. Everything else is SGLang's own, with PyTorch and the like from SITE_PACKAGES, where vLLM for CPUs is.
"""

import sys
import venv
from pathlib import Path

HOLLOW = '''"""Takes the place of {name}, which has no build for CPUs: it is imported, never called."""

import importlib.machinery
import sys
import types

__version__ = "{version}"
__path__ = []


class _Hollow(type):
    def __new__(cls, name, bases=(), fields=None):
        return super().__new__(cls, name, bases, fields or {{}})

    def __init__(cls, name, bases=(), fields=None):
        pass

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Hollow(f"{{cls.__name__}}.{{name}}")

    def __call__(cls, *words, **named):
        raise NotImplementedError(f"{name}.{{cls.__name__}} needs a GPU")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Hollow(name)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("{name}."):
            return importlib.machinery.ModuleSpec(name, _Finder)
        return None

    @staticmethod
    def create_module(spec):
        made = types.ModuleType(spec.name)
        made.__getattr__, made.__path__ = __getattr__, []
        return made

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(_Finder)
'''


def main() -> None:
    folder, packages = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    venv.create(folder, with_pip=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "engines.pth").write_text(f"{packages}\n")
    for name, version in (("sgl_kernel", "0.4.10"), ("torchvision", "0.28.0")):
        (own / f"{name}.py").write_text(HOLLOW.format(name=name, version=version))
        about = own / f"{name}-{version}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


if __name__ == "__main__":
    main()
