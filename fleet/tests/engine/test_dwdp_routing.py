"""Hot experts under a Zipf law of routing: the waits that they cause in DEP, and the needless copies in DWDP."""

from dataclasses import replace

import pytest

from fleet.engine.dwdp.phase import Phase, Prompts
from fleet.engine.dwdp.routing import picked, spread_of_ranks, unused_share
from fleet.systems.dwdp.published import r1_phase


def without_fitted_spread(hot_experts: float) -> Phase:
    phase = r1_phase(Prompts(16_384))
    return replace(phase, hot_experts=hot_experts, reached=replace(phase.reached, skew_ms_per_token=0.0))


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.4, 3.0])
def test_a_token_uses_the_same_number_of_experts_whatever_the_skew(exponent: float) -> None:
    chances = picked(256, 8, exponent)
    assert sum(chances) == pytest.approx(8)
    assert max(chances) <= 1
    assert list(chances) == sorted(chances, reverse=True)


def test_uniform_routing_has_no_spread_and_leaves_experts_unused_only_by_chance() -> None:
    assert spread_of_ranks(256, 8, 0.0, 4) == pytest.approx(0, abs=1e-9)
    assert unused_share(256, 8, 0.0, 100) == pytest.approx((1 - 8 / 256) ** 100)
    assert without_fitted_spread(0.0).wait_ms == pytest.approx(0, abs=1e-6)


def test_hot_experts_make_dep_wait_more_in_larger_groups_and_dwdp_not_at_all() -> None:
    even, hot = without_fitted_spread(0.0), without_fitted_spread(1.0)
    assert hot.dwdp_ms == even.dwdp_ms
    assert hot.gain > even.gain
    spreads = [spread_of_ranks(256, 8, 1.0, ranks) for ranks in (2, 4, 8, 16)]
    assert spreads == sorted(spreads)
    assert unused_share(256, 8, 1.4, 2_048) > 1e6 * unused_share(256, 8, 0.6, 2_048)


def test_the_documented_skew_explains_the_fitted_spread_and_a_mild_skew_three_tenths_of_it() -> None:
    fitted = r1_phase(Prompts(16_384)).wait_ms
    assert without_fitted_spread(1.42).wait_ms == pytest.approx(fitted, rel=0.01)
    assert without_fitted_spread(0.6).wait_ms == pytest.approx(0.3 * fitted, rel=0.1)
