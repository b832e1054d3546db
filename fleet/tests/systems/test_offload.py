"""Closed forms of adaptive prefill offload."""

import pytest

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.systems.offload import (
    Classified,
    Thresholds,
    class_of,
    decodes_that_pay,
    resident_tokens,
    shares,
    transfer_s,
)

OURS, DESIGNS = Thresholds(), Thresholds(session_first=True)


@pytest.mark.parametrize(
    ("prompt", "new", "follows", "ours", "designs"),
    [
        (3_000, 3_000, False, "warm", "warm"),
        (10_000, 4_999, False, "warm", "warm"),
        (10_000, 5_000, False, "medium", "medium"),
        (40_000, 19_999, False, "warm", "warm"),
        (30_000, 20_000, False, "heavy", "heavy"),
        (30_000, 20_000, True, "heavy", "medium"),
        (200_000, 80_000, False, "heavy", "warm"),
    ],
)
def test_the_rules_may_be_applied_in_any_order(prompt: int, new: int, follows: bool, ours: str, designs: str) -> None:
    request = Classified(prompt, new, 100, follows)
    assert (class_of(request, OURS), class_of(request, DESIGNS)) == (ours, designs)


def test_shares_count_requests_and_their_new_tokens() -> None:
    found = shares([Classified(30_000, 30_000, 1, False), *[Classified(2_000, 1_000, 1, True)] * 3], OURS)
    assert (found["heavy"].requests, found["warm"].requests, found["medium"].requests) == (0.25, 0.75, 0)
    assert found["heavy"].new_tokens == pytest.approx(30 / 33)
    assert (found["heavy"].mean_prompt_tokens, found["warm"].mean_new_tokens) == (30_000, 1_000)


def test_resident_kv_follows_littles_law() -> None:
    """Two requests per second stay for 3 s with 1,050 tokens on average."""
    assert resident_tokens([Classified(1_000, 1_000, 100, False)], 2.0, 0.03) == pytest.approx(2 * 3 * 1_050)


def test_an_offload_pays_when_the_stalls_exceed_the_transfer() -> None:
    heavy = shares([Classified(30_000, 30_000, 1, False)], OURS)["heavy"]
    law = law_of(profile())
    moved = transfer_s(30_000, 131_072, 9.7, 0.005)
    assert moved == pytest.approx(0.41, abs=0.01)
    assert decodes_that_pay(law, heavy, moved) == pytest.approx(moved / law.prefill_s(30_000))
