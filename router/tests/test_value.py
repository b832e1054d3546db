"""Values are defined by their content."""

from router.policy.value import Value


class Place(Value):
    row: int
    column: int = 0


def test_values_with_equal_content_are_equal_and_hash_alike() -> None:
    assert Place(1, 2) == Place(row=1, column=2) != Place(1)
    assert {Place(1, 2): "known"}[Place(1, 2)] == "known"


def test_a_value_has_only_its_declared_fields() -> None:
    assert not hasattr(Place(1), "__dict__")
