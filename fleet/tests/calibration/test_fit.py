"""The fit finds the law from exact points, nearly the law from noisy ones, and never an impossible one."""

import math
import random
from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.calibration.fit import CalibrationPoint, TooFewPoints, fit, tpot_s, ttft_s
from fleet.calibration.nnls import nnls
from fleet.calibration.plan import GROUPS, GROUPS_LENGTHS, LENGTHS
from fleet.engine.law import API_S, Law, law_of
from fleet.engine.power import UNKNOWN
from fleet.engine.profiles import FITS, profile

CHUNK = 8192


def points_of(law: Law, noise: float = 0.0, seed: int = 1) -> list[CalibrationPoint]:
    """Return what a sweep would measure of this engine. `noise` is the standard deviation of a
    figure's relative error.
    """
    draw = random.Random(seed)
    plan = [(1, length) for length in LENGTHS] + [(number, length) for number in GROUPS for length in GROUPS_LENGTHS]
    found = []
    for number, length in plan:
        bare = CalibrationPoint(number, length, 48, number * (length + 24.0), None, None, 3)
        ttft = ttft_s(bare, law, API_S, CHUNK) * (1 + draw.gauss(0, noise)) if number == 1 else None
        found.append(replace(bare, ttft_s=ttft, tpot_s=tpot_s(bare, law) * (1 + draw.gauss(0, noise))))
    return found


DENSE = [known for known in sorted(FITS) if not law_of(profile(*known)).experts_s]


@pytest.mark.parametrize("decode_s", [0.0, 2e-4])
@pytest.mark.parametrize("known", DENSE)
def test_from_exact_points_every_constant_is_found(known: tuple[str, str, int], decode_s: float) -> None:
    law = replace(law_of(profile(*known)), decode_s=decode_s).drawing(UNKNOWN)
    made = fit(points_of(law), CHUNK)
    assert astuple(made.law) == pytest.approx(astuple(law), rel=0.001, abs=1e-9)
    assert made.api_s == pytest.approx(API_S, rel=0.001)
    assert max(made.ttft_error, made.tpot_error) < 1e-4


@pytest.mark.parametrize("share", [1 / 8, 1 / 16])
def test_the_experts_of_a_mixture_are_found_where_its_decodes_show_them(share: float) -> None:
    law = replace(law_of(profile("h200_sxm", "Llama-3.1-8B", 1)), experts_s=0.007, expert_share=share)
    points = points_of(law)
    made, dense = fit(points, CHUNK, experts=True), fit(points, CHUNK)
    assert made.law.expert_share == pytest.approx(share)
    assert made.law.experts_s == pytest.approx(0.007, rel=0.02)
    assert made.tpot_error < 0.005 < dense.tpot_error
    assert dense.law.experts_s == made.law.launch_s == 0


def test_a_prompt_too_large_for_graphs_shows_the_launch_time_of_a_mixture() -> None:
    law = replace(law_of(profile("h200_sxm", "Llama-3.1-8B", 1)), experts_s=0.007, expert_share=1 / 8, launch_s=0.06)
    made = fit(points_of(law), CHUNK, experts=True)
    assert made.law.launch_s == pytest.approx(0.06, rel=0.01)
    assert made.ttft_error < 0.01
    assert fit(points_of(law), CHUNK).law.launch_s == 0  # dense models are not launched so slowly
    assert law.step_s(600, 180_000.0, 0, 0) == 0.06 > law.step_s(500, 125_000.0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_from_points_with_three_percent_of_noise_the_times_are_found(seed: int) -> None:
    law = law_of(profile("h100_sxm", "Qwen3-32B", 2))
    made = fit(points_of(law, 0.03, seed), CHUNK)
    for tokens in (100, 1_000, 10_000):
        there = API_S + law.prefill_s(tokens)
        assert made.api_s + made.law.prefill_s(tokens) == pytest.approx(there, rel=0.05)
    for number, context in ((1, 500), (8, 4_000), (32, 60_000)):
        assert made.law.step_s(number, 0, context, number) == pytest.approx(
            law.step_s(number, 0, context, number), rel=0.04
        )
    assert 0 < made.ttft_error < 0.05
    assert 0 < made.tpot_error < 0.05


@pytest.mark.parametrize("factor", [0.005, 0.3, 5])
def test_one_outlier_moves_the_fit_little(factor: float) -> None:
    law = law_of(profile())
    points = points_of(law)
    points[9] = replace(points[9], tpot_s=(points[9].tpot_s or 0.0) * factor)
    made = fit(points, CHUNK)
    assert made.law.step_s(8, 0, 2_000, 8) == pytest.approx(law.step_s(8, 0, 2_000, 8), rel=0.05)


def test_the_error_is_the_mean_deviation_of_the_law() -> None:
    points = points_of(law_of(profile()), 0.05)
    made = fit(points, CHUNK)
    off = [abs(ttft_s(one, made.law, made.api_s, CHUNK) / one.ttft_s - 1) for one in points if one.ttft_s]
    assert made.ttft_error == pytest.approx(sum(off) / len(off))
    assert made.n == 3 * len(points)


seconds = st.floats(1e-5, 1e3)
point = st.builds(
    CalibrationPoint,
    concurrency=st.integers(1, 64),
    prompt_tokens=st.integers(1, 32_768),
    output_tokens=st.just(24),
    context=st.floats(1, 1e6),
    ttft_s=seconds,
    tpot_s=seconds,
    n=st.integers(1, 9),
)


@settings(max_examples=15)
@given(st.lists(point, min_size=4, max_size=12, unique_by=lambda one: one.prompt_tokens))
def test_no_fitted_constant_is_negative_or_not_a_number(points: list[CalibrationPoint]) -> None:
    made = fit(points, CHUNK)
    assert all(math.isfinite(value) and value >= 0 for value in (*astuple(made.law), made.api_s))
    assert math.isfinite(made.ttft_error)
    assert math.isfinite(made.tpot_error)


@pytest.mark.parametrize("left", [0, 3])
def test_too_few_points_are_refused(left: int) -> None:
    with pytest.raises(TooFewPoints, match=f"{left} points"):
        fit(points_of(law_of(profile()))[:left], CHUNK)


def test_points_of_one_length_do_not_show_the_law() -> None:
    points = [replace(one, prompt_tokens=64) for one in points_of(law_of(profile()))]
    with pytest.raises(TooFewPoints, match="1 prompt length"):
        fit(points, CHUNK)


rows = st.lists(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), min_size=1, max_size=8)


@given(rows, st.data())
def test_no_neighbour_of_the_least_squares_is_better(rows: list[list[float]], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.floats(-1e3, 1e3), min_size=len(rows), max_size=len(rows)))

    def loss(x: list[float]) -> float:
        pairs = zip(rows, wanted, strict=True)
        return sum((sum(a * b for a, b in zip(row, x, strict=True)) - value) ** 2 for row, value in pairs)

    found = nnls(rows, wanted)
    assert min(found) >= 0
    for at in range(3):
        for step in (-1e-3, 1e-3):
            beside = [value + step * (index == at) for index, value in enumerate(found)]
            if beside[at] >= 0:
                assert loss(found) <= loss(beside) + 1e-6 * (1 + sum(value**2 for value in wanted))
