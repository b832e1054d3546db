"""The last hour as columns: thinned, with gaps where nothing is known."""

from typing import Any

import pytest

from controlplane.live.dashboard import history
from controlplane.live.dashboard.kept_row import kv_bytes, kv_usage, names

NOW = 10_000.0


def row(at: float, p50: float = 1.0, kv: float = 0.5) -> dict[str, Any]:
    classes = {"demo": {"warm": [9, 1.0, 0, 0, p50, 2.0, 3.0, 4.0, 5.0, 6.0]}}
    return {"at": at, "classes": classes, "ids": "demo-0", "kv": kv_bytes([kv])}


def ttft(columns: dict[str, Any]) -> list[float | None]:
    line: list[float | None] = columns["classes"]["demo"]["warm"]["ttft_p50"]
    return line


def test_one_row_per_second_gives_one_point_per_second() -> None:
    columns = history.columns([row(NOW - 2 + i, p50=i) for i in range(3)], NOW, 300)
    assert (columns["at"], ttft(columns)) == ([NOW - 2, NOW - 1, NOW], [0, 1, 2])


def test_a_gap_is_a_point_without_figures() -> None:
    columns = history.columns([row(NOW - 20), row(NOW)], NOW, 300)
    assert (columns["at"], ttft(columns)) == ([NOW - 20, NOW - 19, NOW], [1.0, None, 1.0])


def test_a_late_second_leaves_no_gap() -> None:
    assert ttft(history.columns([row(NOW - 2), row(NOW)], NOW, 300)) == [1.0, 1.0]


def test_an_hour_is_thinned_to_its_bins_and_each_shows_its_last_row() -> None:
    columns = history.columns([row(NOW - 3599 + i, p50=i) for i in range(3600)], NOW, 3600)
    assert columns["bin_s"] == 12
    assert len(columns["at"]) <= history.POINTS + 1
    assert ttft(columns)[-1] == 3599
    assert None not in ttft(columns)


def test_rows_outside_the_range_are_left_out() -> None:
    assert history.columns([row(NOW - 301), row(NOW)], NOW, 300)["at"] == [NOW]


def test_without_kept_rows_there_is_no_point() -> None:
    assert history.columns([], NOW, 300)["at"] == []


def test_a_class_that_appears_later_is_unknown_before() -> None:
    empty = {"at": NOW - 1, "classes": {"demo": {}}, "ids": "", "kv": b""}
    assert ttft(history.columns([empty, row(NOW)], NOW, 300)) == [None, 1.0]


def test_sparklines_have_a_value_per_second_over_the_last_minute() -> None:
    kept = [row(NOW - 61, kv=0.1), row(NOW - 9, kv=0.2), row(NOW - 1, kv=0.3), row(NOW, kv=0.4)]
    line = history.columns(kept, NOW, 300)["kv"]["demo-0"]
    # A row also covers the two seconds after it, so a slightly late one leaves no gap.
    assert line == [None] * 50 + [0.2] * 3 + [None] * 5 + [0.3, 0.4]


@pytest.mark.parametrize(("seconds", "width"), [(60, 1), (300, 1), (900, 3), (3600, 12)])
def test_a_point_covers_whole_seconds(seconds: int, width: int) -> None:
    assert history.bin_seconds(seconds) == width


def test_the_figures_of_a_single_pool_are_those_of_all_pools() -> None:
    later = {
        "at": NOW,
        "classes": {"*": {"warm": [7]}, "chat": {"warm": [3]}, "demo": {"warm": [4]}},
        "ids": "",
        "kv": b"",
    }
    columns = history.columns([row(NOW - 1), later], NOW, 300)
    assert [columns["classes"][pool]["warm"]["n"] for pool in ("*", "demo", "chat")] == [[9, 7], [9, 4], [None, 3]]


def test_a_stale_sample_is_not_data() -> None:
    columns = {"id": ["a", "b", "c"], "kv": [0.5, 0.5, None], "age_s": [3.0, 3.1, None]}
    columns |= {"running": [1, 2, None], "waiting": [0, 2, None], "hit_rate": [None, 0.5, None]}
    kept = history.row({"at": NOW, "instances": columns, "classes": {}})
    assert dict(zip(names(kept["ids"]), map(kv_usage, kept["kv"]), strict=True)) == {"a": 0.5, "b": None, "c": None}
