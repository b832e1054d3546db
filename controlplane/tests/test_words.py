"""docs/glossary.md is binding: nothing in the product is named by the synonyms in its last column."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CODE = Path(__file__).resolve().parents[2]
GLOSSARY = (CODE / "docs" / "glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in GLOSSARY.splitlines() if line.startswith("| ")
]
PRODUCT = [
    path
    for package in ("router", "fleet", "controlplane")
    for path in sorted((CODE / package).rglob("*.py"))
    if not {"tests", "migrations"} & set(path.parts)
]


def retired() -> set[str]:
    """Return the single words among the synonyms, since a meaning such as "route (the rule)" cannot be checked."""
    cells = [row[-1] for row in ROWS if len(row) == 4]
    return {word for cell in cells for word in re.split(r",\s*", cell) if re.fullmatch(r"[a-z]+", word)} - {"not"}


def names(code: str, banned: set[str]) -> Iterator[tuple[str, int]]:
    """Return the names and their places; code without any of the words is not parsed."""
    lower = code.lower()
    if not any(word in lower for word in banned):
        return
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def test_the_glossary_retires_words() -> None:
    assert {"member", "pulse", "lender"} <= retired()


def test_no_retired_word_names_anything() -> None:
    banned = retired()
    found = [
        f"{path.relative_to(CODE)}:{line}: {name}"
        for path in PRODUCT
        for name, line in [(path.stem, 0), *names(path.read_text(), banned)]
        if banned & set(words(name))
    ]
    assert found == []
