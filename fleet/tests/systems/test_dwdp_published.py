"""The published figures of DWDP: what the model reproduces, and what it misses."""

import itertools

import pytest

from bench import sheets
from fleet.engine.dwdp import table_1
from fleet.systems.dwdp.published import SPEEDUP, VERDICT, Published, figures

BY_GROUP = {group: [*rows] for group, rows in itertools.groupby(figures(), key=lambda row: row.group)}
MISSED = {
    "An iteration, 8,192 x 0.8–1, MNT 32,768": ["copy at the whole link", "waiting"],
    VERDICT: ["GB200 with NVLink 5", "H100 with NVLink 4", "GB200 at 50 GB/s"],
    "Computing over copy, one prompt": ["1024", "8192", "16384", "32768"],
    "DEP over DWDP, one prompt": ["1024"],
    "Waiting at 20 % variation, about": ["prompts of table 1"],
    "TTFT by MNT": ["16384"],
    "TPS/GPU, whole pulls": ["0.5/16384", "0.8/16384"],
    "TPS/GPU, slices": ["0.5/16384"],
    "TTFT of DWDP over DEP": ["0.97 to 1.64 s", "2.5 to 8.3 s"],
    "gpt-oss-120b, 4 x B200, MNT 16,384": ["4096"],
}


def ours(group: str) -> list[float]:
    return [row.ours for row in BY_GROUP[group]]


def test_every_group_is_in_one_place_and_no_case_twice() -> None:
    assert len({(row.group, row.case) for row in figures()}) == len(figures())
    assert sum(map(len, BY_GROUP.values())) == len(figures())


@pytest.mark.parametrize(
    ("group", "values", "within"),
    [
        ("Copy by link", [7.03, 21.1, 253], 0.002),
        ("Window over copy", [1.43, 0.476, 0.0396], 0.005),
        ("Computing over copy, one prompt", [0.168, 0.475, 1.31, 4.28], 0.003),
        ("DEP over DWDP, one prompt", [0.0836, 0.669, 1.339, 1.207], 0.001),
        ("Waiting at 20 % variation", [11.11], 0.001),
        ("TTFT by prompt", [1.188, 1.151, 1.130, 1.124], 0.001),
        ("TTFT by MNT", [1.031], 0.001),
        ("TTFT by deviation of a prompt of 16,384", [1.115, 1.127, 1.158, 1.244], 0.001),
        ("TTFT by GPUs", [0.855, 1.130], 0.001),
        ("TPS/GPU by prompt", [1.102, 1.091, 1.085, 1.090], 0.001),
        ("TPS/GPU by MNT", [1.014], 0.001),
        ("TPS/GPU by deviation of a prompt of 16,384", [1.076, 1.084, 1.104, 1.162], 0.001),
        ("TPS/GPU by GPUs", [1.091, 1.085], 0.001),
        ("TPS/GPU, whole pulls", [1.021, 1.101, 1.014, 1.091], 0.001),
        ("TPS/GPU, slices", [1.038, 1.101, 1.027, 1.091], 0.001),
        ("TPS/GPU at 20 to 100 TPS/user", [1.066, 1.098, 1.121], 0.001),
        ("TTFT of DWDP over DEP", [2.05, 2.65], 0.002),
    ],
)
def test_the_model_says(group: str, values: list[float], within: float) -> None:
    assert ours(group) == pytest.approx(values, rel=within, abs=5e-4)


def test_the_fractions_of_table_2_are_exact() -> None:
    assert all(abs(row.ours - row.published) < 0.01 for row in BY_GROUP["Copies at one source"])


def test_speedups_of_tables_3_4_and_6_are_within_7_percent() -> None:
    rows = [row for row in figures() if row.unit == SPEEDUP and row.source.startswith("[P]")]
    assert len(rows) == 33
    assert max(abs(row.error) for row in rows) < 0.0705


def test_misses_are_called_misses() -> None:
    missed = {group: [row.case for row in rows if row.is_missed] for group, rows in BY_GROUP.items()}
    assert {group: cases for group, cases in missed.items() if cases} == MISSED


def test_a_verdict_that_differs_from_the_notes_is_shown_beside_theirs() -> None:
    assert [row.note for row in BY_GROUP[VERDICT]] == [
        "[N] says viable; here the copy is hidden",
        "[N] says infeasible; here the copy is hidden",
        "[N] says impossible; here the copy is exposed",
    ]


def test_a_gain_instead_of_a_loss_is_a_miss() -> None:
    assert Published("", "", 0.995, 1.005, SPEEDUP, "").is_missed
    assert not Published("", "", 0.995, 1.005, "", "").is_missed


def test_only_table_1_and_two_numbers_of_table_3_are_fitted() -> None:
    fitted = {(row.source, row.group, row.case) for row in figures() if row.basis == "fitted"}
    assert {one for one in fitted if one[0] != "[P] table 1"} == {
        ("[P] table 3a", "TPS/GPU by prompt", "8192"),
        ("[P] table 3c", "TTFT by deviation of a prompt of 16,384", "0"),
    }


def test_one_time_between_iterations_gives_every_gain_in_throughput_of_table_3() -> None:
    rows = [row for row in figures() if row.group.startswith("TPS/GPU by ")]
    assert len(rows) == 11
    assert not any(row.is_missed for row in rows)


def test_table_1_is_printed_in_the_wrong_unit() -> None:
    """In µs the copy would run at 700 times its link; in ms every figure is below a peak."""
    assert table_1.REACHED.link == pytest.approx(0.714, abs=0.001)
    assert table_1.REACHED.link * 900 * 1e3 == pytest.approx(643e3, rel=0.001)  # GB/s, read as µs
    assert table_1.REACHED.attention == pytest.approx(0.806, abs=0.001)
    assert table_1.REACHED.experts == pytest.approx(0.352, abs=0.001)
    assert table_1.REACHED.slowed == pytest.approx(0.234, abs=0.001)
    iteration_ms = table_1.COMPUTING + table_1.COMMUNICATION + table_1.SYNCHRONISATION
    assert table_1.TOKENS / iteration_ms == pytest.approx(22.3, rel=0.02)  # thousand tokens/s and GPU


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _values(rows: list[Published]) -> str:
    bases = {row.basis for row in rows}
    if len(rows) > 1 and bases == {"arithmetic"}:
        return ", ".join(_number(row.ours) for row in rows) + " (all arithmetic)"
    return ", ".join(_number(row.ours) + ("" if row.basis == "predicted" else f" ({row.basis})") for row in rows)


def line(group: str, rows: list[Published]) -> list[str]:
    """A row of docs/findings/tables/dwdp.csv."""
    return [
        group,
        ", ".join(row.case for row in rows),
        rows[0].source,
        ", ".join(f"{row.published:g}" for row in rows) + f" {rows[0].unit}".rstrip(),
        _values(rows),
        ", ".join(row.case for row in rows if row.is_missed) or "–",
    ]


def test_the_table_of_the_documentation_is_the_models() -> None:
    assert [line(group, rows) for group, rows in BY_GROUP.items()] == sheets.read("dwdp")[1:]
