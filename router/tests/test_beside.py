"""The table in bench/README.md that compares the router with others."""

from argparse import Namespace

import pytest

from bench import beside
from bench.router import of_table


def rounds(*costs: float) -> list[dict[str, float]]:
    return [{"cpu_ms": cost, "ttfb_p50": 1.0, "ttfb_p99": 9.0, "mb": 50.0} for cost in costs]


def test_a_row_compares_with_the_cheaper_peer_round_by_round():
    closed = {"weir": rounds(0.3, 0.6), "sglang-router": rounds(0.2, 0.4), "smg": rounds(0.5, 0.5)}
    closed["weir in old"] = rounds(0.6, 0.6)
    paced = {"direct": rounds(0.0), "weir": rounds(0.4), "smg": rounds(0.0), "sglang-router": rounds(0.9)}
    made = beside.table([("unary", closed, paced)], "weir", "old")
    *_, row = made.splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "unary",
        "0.450 (0.300–0.600); 0.400 (0.400–0.400)",
        "0.300 (0.200–0.400) (sglang-router); 0.000 (0.000–0.000) (smg)",
        "1.50; –",
        "0.75; –",
        *["1.00, 9.00"] * 3,
        "50, 50",
    ]


def test_the_page_gets_a_new_table_between_its_marks():
    page = beside.README.read_text()
    made = beside.put(page, "a table\n")
    assert f"{beside.BEGINS}a table\n{beside.ENDS}" in made
    assert beside.put(made, "another\n") == beside.put(page, "another\n")
    with pytest.raises(ValueError, match="must contain the marks"):
        beside.put("no marks", "a table")


def test_the_table_shows_the_first_weir_or_says_why_it_does_not_run():
    asked, no_copy = Namespace(routers="smg,weir-compiled,weir", python="/py"), "there is no compiled copy"
    running = {"weir-compiled": no_copy, "weir-compiled under /py": None}
    assert of_table(running, asked) == "weir-compiled under /py"
    with pytest.raises(SystemExit, match="--write: weir-compiled: there is no compiled copy"):
        of_table(running, Namespace(routers="weir-compiled,weir", python=None))
