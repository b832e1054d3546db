"""The batches that have a slot, and the one that gives it up."""

import pytest

from controlplane.traffic.batches import turns
from controlplane.traffic.batches.turns import Placed, Queued


@pytest.fixture(autouse=True)
def three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PLACES", 3)


def held(pk: int, key: int, for_s: float = 60.0, waits: bool = False, leaves: bool = False) -> Placed:
    return Placed(pk, key, for_s, waits, leaves)


def test_keys_without_a_slot_come_first() -> None:
    queued = [Queued(1, 7), Queued(2, 7), Queued(3, 7), Queued(4, 8)]
    assert turns.claims([], queued) == [1, 4, 2]
    assert turns.claims([held(9, 7)], queued) == [4, 1]


def test_a_key_has_no_more_slots_than_its_share() -> None:
    assert turns.claims([], [Queued(pk, 7) for pk in range(5)]) == [0, 1]


@pytest.mark.parametrize(
    ("placed", "queued", "leaver"),
    [
        ([held(1, 7)], [], None),
        # A key with all of its places makes room for its own waiting batch; other keys do not
        ([held(1, 7), held(2, 7)], [Queued(3, 7)], None),
        ([held(1, 7), held(2, 7, waits=True)], [Queued(3, 7)], 2),
        ([held(1, 8, waits=True), held(2, 7)], [Queued(3, 7)], None),
        # All slots are taken: a waiting batch, a batch of a key with several, one that had its turn
        ([held(1, 1), held(2, 2, waits=True), held(3, 3)], [Queued(4, 4)], 2),
        ([held(1, 1), held(2, 2), held(3, 2)], [Queued(4, 4)], 2),
        ([held(1, 1), held(2, 2), held(3, 3)], [Queued(4, 4)], None),
        ([held(1, 1), held(2, 2, for_s=400.0), held(3, 3)], [Queued(4, 4)], 2),
        ([held(1, 1), held(2, 2, for_s=400.0), held(3, 3)], [Queued(4, 2)], None),
        # A slot that was just taken is kept, and one slot is freed at a time
        ([held(1, 1), held(2, 2, for_s=1.0, waits=True), held(3, 3)], [Queued(4, 4)], None),
        ([held(1, 1, leaves=True), held(2, 2, waits=True), held(3, 3)], [Queued(4, 4)], None),
    ],
)
def test_a_batch_gives_up_its_slot_by_the_rules(placed: list[Placed], queued: list[Queued], leaver: int | None) -> None:
    assert turns.leaver(placed, queued) == leaver
