"""Values in Redis: what earlier releases wrote can be read, what cannot be read is said with its path."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.contract.redis.codec import Unreadable, decode, encode, read
from router.contract.redis.published import FleetValue, PolicyAck
from router.contract.redis.receipt import Receipt
from router.tests.contract import every_kind

KINDS = every_kind()
WRITTEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("values_1.json").read_text())


def test_there_is_a_written_value_of_every_kind() -> None:
    assert WRITTEN.keys() == KINDS.keys()


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_value_of_an_earlier_release_is_read_and_keeps_its_keys(name: str) -> None:
    written = WRITTEN[name]
    again = json.loads(encode(read(KINDS[name], json.dumps(written))))
    renamed = {"route"} if name == "Receipt" else set()
    assert written.keys() - again.keys() == renamed
    assert {key: again[key] for key in written if key not in renamed | {"schema", "instances", "indexes"}} == {
        key: value for key, value in written.items() if key not in renamed | {"schema", "instances", "indexes"}
    }


def test_a_receipt_of_schema_1_named_its_strategy_route() -> None:
    assert read(Receipt, json.dumps(WRITTEN["Receipt"])).strategy == WRITTEN["Receipt"]["route"]


def test_a_newer_writer_may_add_fields_but_not_raise_the_schema_unnoticed() -> None:
    ack = WRITTEN["PolicyAck"]
    assert decode(PolicyAck, json.dumps({**ack, "later": 1})) is not None
    assert decode(PolicyAck, json.dumps({**ack, "schema": 2})) is None
    assert decode(Receipt, json.dumps({**WRITTEN["Receipt"], "schema": 3})) is None
    assert decode(Receipt, json.dumps({**WRITTEN["Receipt"], "schema": "x"})) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null", b'{"schema":1}'])
def test_anything_else_is_unreadable_and_not_fatal(raw: bytes) -> None:
    assert decode(PolicyAck, raw) is None
    with pytest.raises(Unreadable):
        read(Receipt, raw)


def test_what_is_wrong_is_said_with_its_path() -> None:
    fleet = WRITTEN["FleetValue"]
    fleet = {**fleet, "instances": [{**fleet["instances"][0], "epoch": "one"}]}
    with pytest.raises(Unreadable, match=r"Expected `int`, got `str` - at `\$\.instances\[0\]\.epoch`"):
        read(FleetValue, json.dumps(fleet))


def test_an_unknown_number_is_null() -> None:
    assert b'"at":null' in encode(PolicyAck(router="r", pool="p", version=1, at=float("nan")))
    assert decode(PolicyAck, None) is None
