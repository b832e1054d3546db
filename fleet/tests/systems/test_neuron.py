"""Neuron's disaggregated inference in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.engine.law import Law
from fleet.systems import neuron
from fleet.systems.neuron import Balance, Workload

GUIDE = Law(0.01, 0.24 / 1000, 0.0, 0.0, 0.0, 0.0)  # 4 prompts a second
WORK = Workload(1000, 335)  # 2 answers a second in a batch of 8
rates = st.floats(0.01, 100)


def test_four_prefills_and_two_answers_a_second_are_limited_to_two_and_balanced_as_1p2d() -> None:
    mu_p, mu_d = neuron.prefill_rate(GUIDE, WORK), neuron.decode_rate(GUIDE, 8, WORK)
    assert (mu_p, mu_d) == (pytest.approx(4), pytest.approx(2, rel=0.01))
    one = Balance(mu_p, mu_d, 1, 1)
    assert (one.rate, one.slower, one.idle_share) == (mu_d, "decode", pytest.approx(0.5, abs=0.01))
    best = neuron.balanced(mu_p, mu_d)
    assert (best.prefills, best.decodes, best.rate) == (1, 2, pytest.approx(4, rel=0.01))


@pytest.mark.parametrize(
    ("mu_p", "mu_d", "expected"),
    [(4, 2, (1, 2)), (2, 4, (2, 1)), (3, 2, (2, 3)), (1, 1, (1, 1)), (1, 100, (100, 1)), (100, 1, (1, 100))],
)
def test_the_balanced_split_is_a_ratio_of_small_numbers(mu_p: float, mu_d: float, expected: tuple[int, int]) -> None:
    best = neuron.balanced(mu_p, mu_d)
    assert (best.prefills, best.decodes) == expected


@given(rates, rates)
def test_in_balance_little_is_idle(mu_p: float, mu_d: float) -> None:
    assert neuron.balanced(mu_p, mu_d).idle_share <= 0.34  # the worst case lies between 1:1 and 5:6


@given(rates, rates, st.integers(2, 12), st.integers(1, 3), st.integers(1, 3))
def test_no_other_split_of_the_devices_is_better_than_the_best(
    mu_p: float, mu_d: float, devices: int, each_prefill: int, each_decode: int
) -> None:
    given = Balance(mu_p, mu_d, 1, 1)
    best = given.split(devices, each_prefill, each_decode)
    if devices < each_prefill + each_decode:
        assert best is None
        return
    assert best is not None
    assert best.prefills * each_prefill + best.decodes * each_decode <= devices
    for prefills in range(1, devices):
        decodes = (devices - prefills * each_prefill) // each_decode
        assert min(prefills * mu_p, decodes * mu_d) <= best.rate


def test_with_continuous_batching_each_prompt_delays_every_answer() -> None:
    stall, step_s = neuron.prefill_stall(GUIDE, 8, WORK), neuron.step_s(GUIDE, 8, WORK)
    assert stall.interruptions == 7
    assert stall.itl_s == pytest.approx(step_s + 7 * 0.25 / 335)
    assert stall.longest_s == pytest.approx(step_s + 0.25)


def test_a_limit_on_the_itl_allows_a_larger_batch_without_stalls() -> None:
    limit_s = 0.02
    together = neuron.largest_batch(limit_s, GUIDE, WORK, 100, disaggregated=False)
    apart = neuron.largest_batch(limit_s, GUIDE, WORK, 100, disaggregated=True)
    assert 0 < together < apart < 100
    assert neuron.step_s(GUIDE, apart, WORK) <= limit_s < neuron.step_s(GUIDE, apart + 1, WORK)
    assert neuron.largest_batch(0.001, GUIDE, WORK, 100, disaggregated=True) == 0


def test_the_slots_of_a_prefill_worker_limit_its_rate() -> None:
    assert neuron.held_rate(8, 0.05, 0.45) == 14


@pytest.mark.parametrize("device", neuron.DEVICES)
def test_more_devices_are_faster(device: str) -> None:
    one, four = (neuron.device_law(device, "Llama-3.1-8B", count) for count in (1, 4))
    assert neuron.prefill_s(one, WORK) > neuron.prefill_s(four, WORK) > 0


def test_tensor_parallelism_beyond_the_kv_heads_duplicates_kv() -> None:
    """Llama-3.1-8B has 8 KV heads, so two workers of 32 devices hold more tokens than one of 64."""
    assert [neuron.kv_copies("Llama-3.1-8B", parallel) for parallel in (1, 8, 32, 64)] == [1, 1, 4, 8]
    both, one = 2 * neuron.kv_tokens("trn1", "Llama-3.1-8B", 32), neuron.kv_tokens("trn1", "Llama-3.1-8B", 64)
    assert both == pytest.approx(2 * one, rel=0.02)
    assert neuron.kv_tokens("trn1", "Llama-3.3-70B", 1) == 0
