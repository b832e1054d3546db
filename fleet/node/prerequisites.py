"""Checks what an instance needs on this host, with advice if it is missing.

`check` looks at programs, modules of the engine's own Python (in a subprocess with a time limit), free disk space, GPU
memory, ports and the limit of open files.
"""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.kinds.kind import Requirement
from fleet.node import engine_user, process
from fleet.node.ports import is_free
from router.contract import installation

ASK_S = 20.0  # time limit; an interpreter takes 0.1 s, longer from a cold disk
FILES_WANTED = 4096
GB = 1e9

_FIND = """
import importlib.util, json, sys
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False
gpus = {}
if found("pynvml"):
    try:
        import pynvml
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus[str(index)] = pynvml.nvmlDeviceGetMemoryInfo(handle).free
    except Exception as error:
        gpus = {"error": str(error)}
else:
    gpus = {"error": "nvidia-ml-py is not installed in that environment"}
print(json.dumps({"modules": {name: found(name) for name in sys.argv[1:]}, "gpus": gpus}))
"""


@dataclass(frozen=True, slots=True)
class Prerequisite:
    subject: str  # "vllm", "port http 18100", "disk /data"
    good: bool
    text: str  # the finding
    advice: str = ""  # remedy if it is not good


@dataclass(frozen=True, slots=True)
class PythonReport:
    """The modules and GPUs that an interpreter finds."""

    modules: Mapping[str, bool]
    gpus: Mapping[str, object]  # id → free bytes, or "error" → why they are unknown
    error: str = ""


def check(requires: tuple[Requirement, ...], ports: Mapping[str, int]) -> list[Prerequisite]:
    """Check the prerequisites. `ports` must be free; they exclude the ports of a running instance."""
    answers = {python: ask(python, names) for python, names in _questions(requires).items()}
    checked = [_CHECKS[need.kind](need, answers) for need in requires]
    checked += [_port(use, number) for use, number in ports.items()]
    return [*checked, open_files()]


def _questions(requires: tuple[Requirement, ...]) -> dict[str, list[str]]:
    asked: dict[str, list[str]] = {}
    for need in requires:
        if need.kind in {"module", "gpu"}:
            asked.setdefault(need.of, []).extend([need.name] if need.kind == "module" else [])
    return asked


def ask(python: str, modules: list[str]) -> PythonReport:
    argv = [python, "-I", "-c", _FIND, *modules]
    try:
        user = engine_user.current()  # an operator chose the program, so it must not run as Weir's user
        done = subprocess.run(
            user.argv(argv) if user else argv,
            env=process.environment(installation.CODE, {}, user.environment if user else {}),
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        said = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return PythonReport({}, {}, f"{python} did not answer within {ASK_S:g} s")
    except (OSError, ValueError) as error:
        return PythonReport({}, {}, f"{python} could not be run: {error}")
    return PythonReport(said["modules"], said["gpus"])


def _program(need: Requirement, answers: Mapping[str, PythonReport]) -> Prerequisite:
    path = shutil.which(need.name)
    return Prerequisite(need.name, path is not None, path or "not found, or not executable", need.advice)


def _module(need: Requirement, answers: Mapping[str, PythonReport]) -> Prerequisite:
    answer = answers[need.of]
    there = answer.modules.get(need.name, False)
    text = f"in {need.of}" if there else answer.error or f"not installed in {need.of}"
    return Prerequisite(f"module {need.name}", there, text, need.advice)


def _gpu(need: Requirement, answers: Mapping[str, PythonReport]) -> Prerequisite:
    answer, subject = answers[need.of], f"GPU {need.name}"
    error = answer.error or str(answer.gpus.get("error", ""))
    if error:
        # This is not a fault: the engine may see GPUs that this process does not see.
        return Prerequisite(subject, True, f"not checked: {error}")
    free = answer.gpus.get(need.name)
    if not isinstance(free, int):
        return Prerequisite(
            subject, False, f"not found; present: {', '.join(answer.gpus) or 'none'}", "correct engine.gpus"
        )
    return Prerequisite(subject, free >= need.need_gb * GB, f"{free / GB:.1f} GB free", need.advice)


def _folder(need: Requirement, answers: Mapping[str, PythonReport]) -> Prerequisite:
    subject = f"folder {need.name}"
    if not need.need_gb:
        there = Path(need.name).exists()
        return Prerequisite(subject, there, "present" if there else "missing", need.advice)
    existing = _existing(Path(need.name))
    if not os.access(existing, os.W_OK):
        return Prerequisite(subject, False, f"{existing} is not writable", need.advice)
    free = shutil.disk_usage(existing).free / GB
    return Prerequisite(subject, free >= need.need_gb, f"{free:.1f} GB free, {need.need_gb:g} needed", need.advice)


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _port(use: str, number: int) -> Prerequisite:
    free = is_free(number)
    return Prerequisite(
        f"port {use} {number}", free, "free" if free else "in use", "the next start takes another free port"
    )


def open_files(wanted: int = FILES_WANTED) -> Prerequisite:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Prerequisite("open files", soft >= wanted, f"limit {soft} (at most {hard})", f"ulimit -n {wanted}")


_CHECKS: dict[str, Callable[[Requirement, Mapping[str, PythonReport]], Prerequisite]] = {
    "program": _program,
    "module": _module,
    "gpu": _gpu,
    "folder": _folder,
}
