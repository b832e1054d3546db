"""A sketch gives quantiles within two percent and can be merged."""

import math

from hypothesis import given
from hypothesis import strategies as st

from router.contract.values import sketch

values = st.lists(st.floats(min_value=0.002, max_value=1e7), min_size=1, max_size=200)


def made(items):
    filled: sketch.Sketch = {}
    for item in items:
        sketch.add(filled, item)
    return filled


@given(values, st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_two_percent(items, share):
    exact = sorted(items)[math.floor(share * (len(items) - 1))]
    assert abs(sketch.quantile(made(items), share) - exact) <= exact * sketch.RELATIVE_ERROR * 1.0001


@given(values, values)
def test_merged_sketches_equal_one_sketch_of_all_values(left, right):
    assert sketch.merge([made(left), made(right)]) == made(left + right)


def test_an_empty_sketch_has_no_quantile():
    assert sketch.quantile({}, 0.5) is None


def test_zero_stays_zero():
    assert sketch.quantile(made([0, 0, 0]), 0.5) == 0.0
