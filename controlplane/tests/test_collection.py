"""The test files that a run imports."""

import pytest

from controlplane.testing import is_left_out

FAST = "not attacks and not slow and not engines"
SLOW = "slow and not attacks"


@pytest.mark.parametrize(
    ("text", "expression", "left_out"),
    [
        ("pytestmark = pytest.mark.slow", FAST, True),
        ("pytestmark = [pytest.mark.engines, pytest.mark.timeout(9)]", FAST, True),
        ("pytestmark = pytest.mark.slow", SLOW, False),
        ("pytestmark = [pytest.mark.slow, pytest.mark.attacks]", SLOW, True),
        ("pytestmark = pytest.mark.slow", "slow or not attacks", False),
        ("pytestmark = pytest.mark.django_db", FAST, False),
        ("pytestmark = pytest.mark.django_db", SLOW, True),
        ("@pytest.mark.slow\ndef test_one():", FAST, False),
        ("@pytest.mark.slow\ndef test_one():", SLOW, False),
        ("pytestmark = pytest.mark.slow", "", False),
    ],
)
def test_a_file_without_a_selected_test_is_not_imported(text: str, expression: str, left_out: bool) -> None:
    assert is_left_out(text, expression) is left_out
