"""Names that compiled code looks up once instead of at each use."""

import ast

import pytest

from deploy.bound_names import bound

OTHERS = {
    "pack/plain.py": "from json import loads\n\nLIMIT = [1]\nSMALL: Final = 5\nlimit = 3\n\ndef work(): ...\n",
    "pack/fast.py": "KEPT = [1]\nFIXED: Final = [1]\n\ndef work(): ...\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in OTHERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(source, root):
    """Return the bound names; the code must stay valid."""
    made = bound(source, {"pack.fast"}, root)
    assert len(made.split("\n")) == len(source.split("\n"))
    constants = [node for node in ast.walk(ast.parse(made)) if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(node.value) for node in constants if ast.unparse(node.annotation) == "_FinalName"}


@pytest.mark.parametrize(
    ("imports", "used", "expected"),
    [
        ("import time", "time.perf_counter()", {"time.perf_counter"}),
        ("from pack.plain import work", "work()", {"work"}),
        ("from pack import plain", "plain.work()", {"plain.work"}),
        ("from pack.plain import loads", "loads(1)", {"loads"}),  # a function of a library, through a module
        ("from pack.plain import LIMIT  # a remark", "LIMIT[0]", {"LIMIT"}),
        ("from pack.fast import KEPT", "KEPT[0]", {"KEPT"}),
        ("from pack.fast import FIXED", "FIXED[0]", set()),  # already a constant in C
        ("from pack.plain import SMALL", "SMALL", set()),  # replaced by its number
        ("from pack.plain import limit", "limit", set()),  # may change
        ("from pack.fast import work", "work()", set()),  # already a call in C
        ("from pack import fast", "fast.work()", set()),
        ("from pack.plain import work", "isinstance(1, work)", set()),
        ("from math import floor", "floor(1.5)", set()),  # mypyc knows it by its name
    ],
)
def test_only_names_that_would_be_looked_up_are_bound(root, imports, used, expected):
    assert names(f"{imports}\n\ndef use():\n    return {used}\n", root) == expected


@pytest.mark.parametrize(
    "source",
    [
        "from pack.plain import work\n\ndef use(work):\n    return work()\n",
        "from pack.plain import work\n\ndef use():\n    from pack.fast import work\n    return work()\n",
        "from pack.plain import work\n\nmade = work()\n",
        "from pack.plain import work\n\n@work()\ndef use(given=work()) -> work(): ...\n",
        "from pack.plain import work\n\ndef use():\n    try:\n        pass\n    except work:\n        pass\n",
    ],
)
def test_other_names_and_those_outside_functions_are_unchanged(root, source):
    assert bound(source, {"pack.fast"}, root) == source


def test_bound_code_does_the_same(root):
    source = "import json\n\ndef use(text):\n    return [json.loads(text) for _ in range(2)], 'é', json.dumps(text)\n"
    plain, made = {}, {}
    exec(source, plain)
    exec(bound(source, (), root), made)
    assert made["use"]("[1]") == plain["use"]("[1]")
    assert "_of_json_loads(text)" in bound(source, (), root)
