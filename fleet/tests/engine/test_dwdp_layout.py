"""DWDP: the ranks that hold each expert, and those that copy it from them."""

import pytest

from fleet.engine.dwdp.layout import ExpertLayout, LayoutError, layout
from fleet.engine.dwdp.phase import Prompts
from fleet.systems.dwdp.published import r1_phase


@pytest.mark.parametrize(("ranks", "local", "prefetch"), [(3, 86, 85), (4, 64, 64), (5, 52, 51), (7, 40, 36)])
def test_the_default_copies_as_few_as_the_ranges_allow(ranks: int, local: int, prefetch: int) -> None:
    assert layout(256, ranks) == ExpertLayout(256, ranks, local, prefetch)
    assert layout(256, ranks, local=local) == layout(256, ranks, prefetch=prefetch) == layout(256, ranks)


@pytest.mark.parametrize("experts", [8, 60, 128, 256])
def test_every_rank_holds_or_fetches_each_expert_once(experts: int) -> None:
    for ranks in range(2, min(experts, 17)):
        for prefetch in range(1, experts // ranks + 1):
            built = layout(experts, ranks, prefetch=prefetch)
            for rank in range(ranks):
                fetched = built.fetched(rank)
                assert sorted([*built.held(rank), *(one for part in fetched.values() for one in part)]) == [
                    *range(experts)
                ]
                assert all(set(part) <= set(built.held(peer)) for peer, part in fetched.items())
                assert sum(map(len, fetched.values())) == built.remote


@pytest.mark.parametrize(
    ("ranks", "local", "prefetch", "field", "words"),
    [
        (1, None, None, "ranks", "must be 2 to 256, the experts of a layer"),
        (257, None, None, "ranks", "must be 2 to 256"),
        (4, None, 0, "prefetch", "0 must be 1 to 64: 256 experts on 4 GPUs"),
        (4, 61, 65, "prefetch", "65 must be 1 to 64"),
        (4, 300, None, "local", "300 held leave -44 of 256 experts, .* nearest allowed: 253"),
        (3, 86, 86, "prefetch", "86 must be 1 to 85"),
        (4, 60, 64, "local", "60 held + 3 x 64 copied = 252 experts, but the model has 256; allowed with 64 copied"),
        (4, 65, 63, "local", "65 held + 3 x 63 copied = 254 experts"),
        (4, 65, None, "local", "65 held leave 191 of 256 experts, which 3 GPUs cannot provide .* nearest allowed: 64"),
    ],
)
def test_any_other_group_is_refused(
    ranks: int, local: int | None, prefetch: int | None, field: str, words: str
) -> None:
    with pytest.raises(LayoutError, match=words.replace("+", r"\+")) as refused:
        layout(256, ranks, local, prefetch)
    assert refused.value.field == field


def test_experts_take_memory_for_what_is_held_and_two_copies_of_a_layer() -> None:
    phase = r1_phase(Prompts(8192))
    assert phase.expert_bytes(64, buffers=False) == pytest.approx(64 * 58 * 24.77e6, rel=1e-3)
    assert phase.expert_bytes(64, buffers=True) == pytest.approx((64 * 58 + 2 * 192) * 24.77e6, rel=1e-3)
