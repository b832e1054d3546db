"""Rules for the code that a reader sees: each is a count over the product's modules that may only decrease."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from controlplane.tests.test_words import CODE, PRODUCT

CLAUSE = re.compile(r"\S.*  # (?:of|that|which|whose|for which|by which|in which)\b")
FRAGMENT = re.compile(r'^\s*"""(?:Also|And|As|From|It|Of|They|Those) ', re.MULTILINE)
OWN_WORDS = re.compile(
    r"def test_(?:\w*_)?(?:anew|somebody|told_apart|goes_on|go_on|in_words|of_(?:its|their)_own)(?:_\w*)?\("
    r"|def test_(?:\w*_)?(?:is|are)_away(?:_\w*)?\("
    r"|\b(?:an?|the) [\w' -]+ of (?:its|their) own\b(?! \w|\")|\bsomething else (?:runs|starts|started)\b"
)
BARE_READING = re.compile(
    r"\bmsgspec\.convert\b|^from msgspec import (?:.*|\([^)]*)\bconvert\b"
    r"|\bjson\.decode\((?:[^()]|\([^()]*\))*\btype=|^[ \t].*\bjson\.Decoder\(",
    re.MULTILINE,
)
MODULES_PER_FOLDER = 12
LINES_PER_FUNCTION = 40
WORDS_PER_CHANGE = 20
MODULES = [path for path in PRODUCT if not path.name.startswith("testing")]
REPEATED = {"Command", "Config", "Media", "Meta", "Migration"}  # names that Django gives


def every_module() -> Iterator[Path]:
    """Yield the modules, tests included."""
    return (path for package in ("router", "fleet", "controlplane") for path in (CODE / package).rglob("*.py"))


def test_a_trailing_comment_reads_alone() -> None:
    wrong = [
        f"{path.relative_to(CODE)}:{number}: {line.strip()}"
        for path in [*every_module(), *(CODE / "bench").rglob("*.py")]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if CLAUSE.search(line)
    ]
    assert not wrong, (
        "a comment is a noun phrase or a sentence; it does not go on from the name before it:\n" + "\n".join(wrong)
    )


def test_no_committed_file_is_a_link_to_a_folder_of_one_machine() -> None:
    if not (CODE / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=CODE, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    assert "README.md" in listed
    assert [name for name in listed if (CODE / name).is_symlink() and (CODE / name).readlink().is_absolute()] == []


Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions() -> list[Defined]:
    return [found for path in MODULES for found in within(ast.parse(path.read_text()))]


def within(node: ast.AST) -> Iterator[Defined]:
    """Only statements define names, so only they are visited; visiting expressions would take most of the time."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            if isinstance(inner, Defined):
                yield inner
            yield from within(inner)


def crowded_folders() -> int:
    folders = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    return sum(count > MODULES_PER_FOLDER for count in folders.values())


def names_of_several_classes() -> int:
    names = Counter(one.name for one in definitions() if isinstance(one, ast.ClassDef) and one.name not in REPEATED)
    return sum(count > 1 for count in names.values())


def long_functions() -> int:
    functions = (one for one in definitions() if not isinstance(one, ast.ClassDef))
    return sum((one.end_lineno or 0) - one.lineno >= LINES_PER_FUNCTION for one in functions)


def docstrings_that_begin_within_a_clause() -> int:
    """A docstring that begins with *of*, *as* or *it* leaves the reader to guess its subject."""
    return sum(len(FRAGMENT.findall(path.read_text())) for path in every_module())


def words_of_our_own() -> int:
    """Count names of tests with *away* for unreachable and *anew* for again, and texts with *one of its own*."""
    return sum(len(OWN_WORDS.findall(path.read_text())) for path in every_module())


def readings_that_threads_may_not_share() -> int:
    """Count values that msgspec reads other than by reading.py, which prepares their types for several threads."""
    modules = (path for path in MODULES if path.name != "reading.py" or path.parent.name != "values")
    return sum(len(BARE_READING.findall(path.read_text())) for path in modules)


def words_of_documents() -> int:
    pages = [*CODE.glob("*.md"), *(CODE / "docs").rglob("*.md"), *(CODE / "bench").rglob("*.md")]
    ours = (path for path in pages if not path.is_relative_to(CODE / "bench" / "out"))  # there, other routers'
    return sum(len(path.read_text().split()) for path in ours)


def test_an_entry_of_the_changelog_has_at_most_20_words() -> None:
    entries = re.findall(r"^\* (.+(?:\n  .+)*)", (CODE / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(entries) > 100
    assert [entry for entry in entries if len(entry.split()) > WORDS_PER_CHANGE] == []


@pytest.mark.parametrize(
    ("figure", "most"),
    [
        (crowded_folders, 0),
        (names_of_several_classes, 5),
        (long_functions, 0),
        (docstrings_that_begin_within_a_clause, 0),
        (words_of_our_own, 0),
        (readings_that_threads_may_not_share, 0),
        (words_of_documents, 79_000),
    ],
)
def test_a_count_only_decreases(figure: Callable[[], int], most: int) -> None:
    assert figure() <= most, "take something out, or merge, before adding; lower the limit where it fell"
