"""The router's fault matrix in docs/findings/faults.md names only tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "findings" / "faults.md"


def named():
    matrix = PAGE.read_text().split("\n## The router\n")[1].split("\n## ")[0]
    rows = [line for line in matrix.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    return rows, re.findall(r"\| `([\w/]+\.py)::(test_\w+)` \|$", matrix, re.MULTILINE)


def test_each_row_of_the_fault_matrix_names_an_existing_test():
    rows, tests = named()
    assert len(rows) == len(tests) > 30
    missing = [
        f"{path}::{name}"
        for path, name in tests
        for file in [ROOT / path if path.startswith("controlplane/") else HERE / path]
        if not file.exists() or not re.search(rf"def {name}\(", file.read_text())
    ]
    assert missing == []
