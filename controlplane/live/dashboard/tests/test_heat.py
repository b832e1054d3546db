"""KV usage over time as bytes: one row per instance, one cell per bin, 255 where nothing is known."""

import base64
from typing import Any

from controlplane.live.dashboard import history
from controlplane.live.dashboard.kept_row import kv_bytes

END = 10_000.0


def cells(sent: dict[str, Any]) -> dict[str, list[int]]:
    data, width = base64.b64decode(sent["cells"]), sent["columns"]
    return {name: list(data[i * width : (i + 1) * width]) for i, name in enumerate(sent["ids"])}


def row(at: float, **kv: float | None) -> Any:
    return {"at": at, "ids": "\n".join(kv), "kv": kv_bytes(kv.values())}


def test_a_cell_is_the_highest_usage_of_its_bin() -> None:
    sent = history.cells([row(END - 1, a=0.5), row(END, a=0.25), row(END + 1, a=0.75, b=None)], END, 300)
    assert (sent["bin_s"], sent["columns"], sent["from"]) == (2, 150, 9702)
    assert cells(sent)["a"][-2:] == [50, 75]
    assert cells(sent)["b"] == [history.NO_DATA] * 150


def test_a_gap_stays_a_gap_and_older_rows_are_left_out() -> None:
    shown = cells(history.cells([row(END - 400, a=0.1), row(END - 10, a=1.7), row(END, a=-0.2)], END, 300))["a"]
    assert [shown[-6], shown[-5], shown[-1]] == [100, history.NO_DATA, 0]
    assert sum(cell != history.NO_DATA for cell in shown) == 2


def test_an_hour_is_thinned_and_has_no_gaps() -> None:
    shown = cells(history.cells([row(END - 3599 + i, a=0.5) for i in range(3600)], END, 3600))["a"]
    assert len(shown) == 150
    assert shown.count(history.NO_DATA) == 0


def test_an_empty_store_has_no_rows() -> None:
    assert history.cells([], END, 300)["ids"] == []
