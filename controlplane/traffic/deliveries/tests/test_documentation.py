"""docs/delivery.md describes each field, metric and state, with the range that is checked."""

import re
from pathlib import Path

import pytest

from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.plan.types import COMPARISONS, COUNTS, POOL_METRICS, PROMETHEUS
from controlplane.traffic.deliveries.states import CLOSED, State
from controlplane.traffic.deliveries.tests.test_plan import WHOLE
from router.policy.schema.parameters import OF_THE_POOL

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "docs" / "delivery.md").read_text()
PLAN, STATES, RULES = (TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0] for title in ("Plan", "States", "Rules"))
ROWS = {row[0].strip(" `"): row for row in (line.strip("|").split("|") for line in PLAN.splitlines() if "|" in line)}


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_has_its_range(name: str) -> None:
    low, high = NUMBERS[name].range
    assert ROWS[name][2].strip() == f"{low:,.10g} to {high:,.10g}"


def test_each_field_of_a_whole_plan_has_a_row() -> None:
    documented = {re.split(r"[.\[]", name)[-1].lstrip("].") for name in ROWS}
    fields = set(WHOLE)
    for part in (*WHOLE["steps"], *WHOLE["guards"], WHOLE["hold"], WHOLE["approvals"], WHOLE["start"]):
        fields |= set(part)
    assert fields - {"hold", "approvals", "start"} <= documented | {"then"}


def test_each_metric_is_described_and_no_other() -> None:
    table = PLAN.split("| metric | what is compared |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z0-9_.]+)` \|", table, re.MULTILINE) == [
        *COMPARISONS,
        *COUNTS,
        *POOL_METRICS,
        PROMETHEUS,
    ]


def test_each_state_is_described() -> None:
    rows = [line for line in STATES.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert named == list(State)
    assert len(CLOSED) == 8


def test_parameters_of_the_pool_are_named() -> None:
    assert all(f"`{path}" in PLAN for path in OF_THE_POOL)


def test_the_example_is_a_plan() -> None:
    import json

    example = json.loads(re.search(r"```json\n(.*?)```", PLAN, re.DOTALL)[1])
    assert len(parse_plan(example, pools=("chat",)).steps) == 5


@pytest.mark.parametrize("word", ["allowed", "admin", "never", "again", "emergency", "hold", "abort"])
def test_the_names_of_the_rules_are_those_of_the_code(word: str) -> None:
    assert f"`{word}" in RULES or f"{word}: why" in RULES or f".{word}`" in RULES


def test_each_row_of_the_fault_matrix_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "findings" / "faults.md").read_text()
    matrix = page.split("\n## Deliveries\n")[1].split("\n## ")[0]
    rows = [line for line in matrix.splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`([\w/]+\.py)::(test_\w+)`", row) for row in rows]
    assert len(rows) > 10
    assert all(named)
    missing = [test for row in named for path, test in row if f"def {test}(" not in (ROOT / path).read_text()]
    assert missing == []
