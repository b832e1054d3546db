"""A stand-in for a Python with the library: a separate process that answers as the library's tables would."""

import json
import sys
from pathlib import Path

from fleet.tests.profiling.test_fit import ANSWER, CONFIG


def interpreter(folder: Path, **changes: object) -> str:
    """Write an interpreter that answers for a small model with `changes`; with `dies`, the interpreter fails with that
    word.
    """
    answer = json.dumps({**ANSWER, "config": CONFIG, **changes})
    told = folder / "asked.json"
    path = folder / "python"
    path.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "if '-c' in sys.argv:\n    sys.exit(0)\n"
        f"dies = {changes.get('dies', '')!r}\n"
        "if dies:\n    sys.exit(dies)\n"
        f"asked = sys.stdin.read()\nopen({str(told)!r}, 'w').write(asked)\n"
        f"[print({answer!r}) for _ in asked.splitlines()]\n"
    )
    path.chmod(0o755)
    return str(path)


def asked(folder: Path) -> dict[str, object]:
    """Return the input of the child process."""
    found: dict[str, object] = json.loads((folder / "asked.json").read_text())
    return found
