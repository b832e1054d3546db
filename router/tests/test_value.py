"""Values are what they hold."""

from router.policy.value import Value


class Place(Value):
    row: int
    column: int = 0


def test_those_that_hold_the_same_are_equal_and_one_key() -> None:
    assert Place(1, 2) == Place(row=1, column=2) != Place(1)
    assert {Place(1, 2): "known"}[Place(1, 2)] == "known"


def test_a_value_has_no_room_for_more_than_its_fields() -> None:
    assert not hasattr(Place(1), "__dict__")
