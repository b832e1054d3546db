"""Rules for the code that a reader meets: each is a count over the product's modules that may only fall."""

import re
from collections.abc import Iterator
from pathlib import Path

CODE = Path(__file__).resolve().parents[2]
CLAUSE = re.compile(r"\S.*  # (?:of|that|which|whose|for which|by which|in which)\b")


def modules() -> Iterator[Path]:
    """Yield the product's modules: no tests, no migrations, no helpers of tests."""
    for package in ("router", "fleet", "controlplane"):
        for path in sorted((CODE / package).rglob("*.py")):
            if not {"tests", "migrations"} & set(path.parts) and not path.name.startswith("testing"):
                yield path


def test_a_trailing_comment_stands_without_the_name_beside_it() -> None:
    wrong = [
        f"{path.relative_to(CODE)}:{number}: {line.strip()}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if CLAUSE.search(line)
    ]
    assert not wrong, (
        "a comment is a noun phrase or a sentence; it does not go on from the name before it:\n" + "\n".join(wrong)
    )
