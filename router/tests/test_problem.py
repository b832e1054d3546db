"""One type of problem, shown on the command line, over REST and in a form."""

import json
import math

import pytest

from router.contract.values.problem import VALUE_CHARS, Problem, as_json, by_path

SEED = Problem("spec.pools[0].engine.seed", -1, "out of range", "0 or more")


def test_the_command_line_shows_path_message_allowed_range_and_value():
    assert str(SEED) == "spec.pools[0].engine.seed: out of range; allowed: 0 or more (got -1)"
    assert str(Problem("", [], "must be a mapping")) == "document: must be a mapping (got [])"


def test_rest_gets_path_value_and_message_with_the_allowed_range():
    assert as_json(SEED) == {
        "path": "spec.pools[0].engine.seed",
        "value": -1,
        "message": "out of range; allowed: 0 or more",
    }


def test_a_form_gets_the_text_by_path():
    assert by_path([SEED, Problem("name", "", "must not be empty")]) == {
        SEED.path: "out of range; allowed: 0 or more",
        "name": "must not be empty",
    }


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (None, None),
        (True, True),
        (0.5, 0.5),
        (math.nan, "nan"),
        (2**60, str(2**60)),
        ("\ud800", "?"),
        ("x" * 500, "x" * VALUE_CHARS),
        ({"a": 1}, {"a": 1}),
        (["y"] * 100, repr(["y"] * 100)[:VALUE_CHARS]),
    ],
)
def test_any_rejected_value_becomes_short_valid_json(value, carried):
    sent = as_json(Problem("p", value, "no"))["value"]
    assert sent == carried
    json.dumps(sent, allow_nan=False)
