"""Values in Redis: those written by earlier releases can be read, and an unreadable one is reported with its path."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.contract.redis.codec import Unreadable, decode, encode, read
from router.contract.redis.published import FleetValue, FullRollout, PolicyAck, PolicyValue, SplitRollout
from router.contract.redis.receipt import Receipt
from router.contract.values.reading import read_value
from router.tests.contract import every_kind

KINDS = every_kind()
WRITTEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("values_1.json").read_text())
SPLIT = {
    "mode": "split",
    "delivery": 7,
    "generation": 3,
    "salt": "5f2b1c9e00aa",
    "share": 0.25,
    "shadow": 1.0,
    "warmup_s": 30.0,
    "slow": {"warm": [2.1, 0.4, 0.9], "heavy": [1.0, 0.7, 1.1]},
    "candidate": {"version": 44, "sha256": "aa", "document": {"schema": 1}},
}


def test_there_is_a_stored_value_of_every_kind() -> None:
    assert WRITTEN.keys() == KINDS.keys()


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_value_of_an_earlier_release_is_read_and_keeps_its_keys(name: str) -> None:
    written = WRITTEN[name]
    again = json.loads(encode(read(KINDS[name], json.dumps(written))))
    assert written.keys() <= again.keys()
    assert all(keeps(again[key], value) for key, value in written.items())


def keeps(again: Any, written: Any) -> bool:
    """Fields may have been added since, at the end of values that are written as lists."""
    if isinstance(written, dict):
        return all(key in again and keeps(again[key], value) for key, value in written.items())
    if isinstance(written, list):
        return len(again) >= len(written) and all(map(keeps, again, written))
    return bool(again == written)


def test_a_newer_writer_can_add_fields_but_not_raise_the_schema_unnoticed() -> None:
    ack = WRITTEN["PolicyAck"]
    assert decode(PolicyAck, json.dumps({**ack, "later": 1})) is not None
    assert decode(PolicyAck, json.dumps({**ack, "schema": 2})) is None
    assert decode(Receipt, json.dumps({**WRITTEN["Receipt"], "schema": 3})) is None
    assert decode(Receipt, json.dumps({**WRITTEN["Receipt"], "schema": "x"})) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null", b'{"schema":1}'])
def test_any_other_value_is_unreadable_but_not_fatal(raw: bytes) -> None:
    assert decode(PolicyAck, raw) is None
    with pytest.raises(Unreadable):
        read(Receipt, raw)


def test_problems_are_reported_with_their_path() -> None:
    fleet = WRITTEN["FleetValue"]
    fleet = {**fleet, "instances": [{**fleet["instances"][0], "epoch": "one"}]}
    with pytest.raises(Unreadable, match=r"Expected `int`, got `str` - at `\$\.instances\[0\]\.epoch`"):
        read(FleetValue, json.dumps(fleet))


def test_an_unknown_number_is_null() -> None:
    assert b'"at":null' in encode(PolicyAck(router="r", pool="p", version=1, at=float("nan")))
    assert decode(PolicyAck, None) is None


def test_a_policy_without_a_rollout_is_in_force_for_all_requests() -> None:
    written = {key: value for key, value in WRITTEN["PolicyValue"].items() if key != "rollout"}
    value = read(PolicyValue, json.dumps(written))
    assert value.rollout == FullRollout()
    assert json.loads(encode(value))["rollout"] == {"mode": "full"}


def test_a_rollouts_mode_decides_whether_requests_are_split() -> None:
    policy = {**WRITTEN["PolicyValue"], "rollout": SPLIT}
    rollout = read(PolicyValue, json.dumps(policy)).rollout
    assert isinstance(rollout, SplitRollout)
    assert (rollout.delivery, rollout.generation, rollout.share, rollout.slow["warm"][2]) == (7, 3, 0.25, 0.9)
    assert json.loads(encode(read(PolicyValue, json.dumps(policy))))["rollout"] == SPLIT
    later = {**WRITTEN["PolicyValue"], "rollout": {"mode": "full", "generation": 4}}
    assert read(PolicyValue, json.dumps(later)).rollout == FullRollout(generation=4)
    with pytest.raises(Unreadable, match=r"Invalid value 'half' - at `\$\.rollout\.mode`"):
        read(PolicyValue, json.dumps({**policy, "rollout": {"mode": "half"}}))


def test_a_shadow_decision_is_short_and_keeps_its_class() -> None:
    shadow = {"version": 44, "instance": "demo-1", "flow": "colocated", "class": "warm"}
    receipt = read(Receipt, json.dumps({**WRITTEN["Receipt"], "delivery": 7, "shadow": shadow}))
    assert receipt.shadow is not None
    assert (receipt.delivery, receipt.shadow.request_class, receipt.shadow.changed) == (7, "warm", False)
    assert json.loads(encode(receipt))["shadow"] == shadow


def slow_to_tell() -> type[int]:
    """Return the type of a field; msgspec asks for it when it first reads a value."""
    time.sleep(0.02)
    return int


class SlowToPrepare(msgspec.Struct):
    count: "slow_to_tell()"  # type: ignore[valid-type]


class OfSlow(msgspec.Struct):
    inner: SlowToPrepare


def test_a_type_that_two_threads_read_first_at_once_is_whole_for_both() -> None:
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: read_value({"inner": {"count": 1}}, OfSlow), range(2)))
    assert made == [OfSlow(SlowToPrepare(1))] * 2
