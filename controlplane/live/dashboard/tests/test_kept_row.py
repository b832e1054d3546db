"""Rows in the form in which Redis stores them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controlplane.live.dashboard import kept_row
from controlplane.live.dashboard.kept_row import kv_bytes, kv_usage, names, only, pack, unpack

LOADS = {"running": [1, None], "waiting": [0, None], "hits": [0.5, None]}
ROW: Any = {"at": 10.5, "classes": {"demo": {}}, "ids": "a\nb", "kv": kv_bytes([0.5, None]), "loads": LOADS}


def stored(fields: dict[str, bytes]) -> dict[bytes, bytes]:
    return {name.encode(): value for name, value in fields.items()}


def test_a_row_is_read_as_it_was_written() -> None:
    assert unpack(stored(pack(ROW)), loads=True) == ROW


def test_loads_are_read_only_if_requested() -> None:
    fields = stored(pack(ROW))
    assert unpack({**fields, b"l": b"not a zlib stream"}, loads=False) == {k: v for k, v in ROW.items() if k != "loads"}


def test_a_row_of_another_release_is_left_out() -> None:
    assert unpack({b"x": b"?"}, loads=False) is None


def test_a_row_without_instances_has_no_names() -> None:
    assert names("") == ()
    assert only({**ROW, "ids": "", "kv": b""}, {"a"}) == ("", b"")


def test_some_instances_of_a_row_can_be_chosen() -> None:
    assert only(ROW, {"b", "gone"}) == ("b", kv_bytes([None]))


@given(st.floats(-1, 2))
def test_a_byte_stores_the_usage_to_a_fifth_of_a_percent(usage: float) -> None:
    found = kv_usage(kv_bytes([usage])[0])
    assert found is not None
    assert abs(found - min(1.0, max(0.0, usage))) <= 0.5 / kept_row.STEPS + 1e-9
