"""The cost of a question: hits in HBM and below, loads, bubbles."""

import pytest

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import DRAM, LAYER_PASS_S, SSD, SSD_TUTTI
from fleet.engine.tiers.loading import CHUNK, bubble_s, load_s, paged, prefill_s
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.tiers.load import Question
from fleet.systems.tiers.serving import TierCapacity, TieredEngine, job, jobs

LAYOUT = layout_of(profile())
LAW = paged(law_of(profile()))


def engine(**options: float) -> TieredEngine:
    return TieredEngine(LAW, LAYOUT, **{"hbm_tokens": 10_000, **options})  # type: ignore[arg-type]


def served(tier: TierCapacity, *documents: tuple[int, int], **options: float) -> list[tuple[int, int, int]]:
    """Return (new tokens, tokens from HBM, tokens from the tier) of questions of 100 tokens."""
    asked = [Question(*document) for document in documents]
    return [(each.new, each.near, each.far) for each in jobs(engine(**options), tier, asked, 100)]


def test_hbm_keeps_the_most_recently_used_document() -> None:
    found = served(TierCapacity(), (1, 4_000), (1, 4_000), (2, 4_000), (3, 4_000), (1, 4_000))
    assert found == [(4_100, 0, 0), (100, 4_000, 0), (4_100, 0, 0), (4_100, 0, 0), (4_100, 0, 0)]


def test_the_tier_keeps_blocks_evicted_from_hbm_until_it_is_full() -> None:
    tier = TierCapacity(DRAM, 12_000)
    found = served(tier, (1, 6_000), (2, 6_000), (1, 6_000), (3, 6_000), (2, 6_000))
    assert found == [(6_100, 0, 0), (6_100, 0, 0), (100, 0, 6_000), (6_100, 0, 0), (6_100, 0, 0)]


def test_a_document_larger_than_hbm_is_not_kept_there() -> None:
    assert served(TierCapacity(), (1, 20_000), (1, 20_000)) == [(20_100, 0, 0)] * 2


@pytest.mark.parametrize(("new", "far"), [(100, 30_000), (CHUNK + 5_000, 60_000)])
def test_the_time_follows_the_closed_form(new: int, far: int) -> None:
    for device in (DRAM, SSD, SSD_TUTTI):
        found = job(engine(), device, new + far, 0, far)
        assert found.busy_s == pytest.approx(prefill_s(LAW, device, LAYOUT, new, far, floor_s=LAYER_PASS_S))
        assert found.load_s == load_s(device, LAYOUT, far)


def test_the_bubble_is_the_whole_load_unless_layers_hide_it() -> None:
    whole = job(engine(), SSD, 60_100, 0, 60_000)
    assert whole.bubble_s == whole.load_s
    layered = job(engine(floor_s=0.0), SSD_TUTTI, 60_100, 0, 60_000)
    assert layered.bubble_s == bubble_s(layered.load_s, layered.compute_s, LAYOUT.layers)
    assert layered.bubble_s < layered.load_s
    assert layered.exposed_s == pytest.approx(layered.bubble_s)


def test_the_drives_are_idle_while_the_gpu_computes_longer_than_they_read() -> None:
    short = job(engine(), SSD_TUTTI, 8_100, 0, 8_000)
    assert short.slack_s == pytest.approx(LAYER_PASS_S - short.load_s)
    assert job(engine(floor_s=0.0), SSD_TUTTI, 60_100, 0, 60_000).slack_s == 0
    assert job(engine(), SSD_TUTTI, 8_100, 0, 0).slack_s == job(engine(), SSD_TUTTI, 8_100, 0, 0).compute_s


def test_load_or_compute_computes_a_short_prefix_and_loads_a_long_one() -> None:
    picky = engine(picks_faster=True)
    assert job(picky, SSD, 8_100, 0, 8_000).far == 0
    assert job(picky, SSD, 8_100, 0, 8_000).new == 8_100
    assert job(picky, SSD, 100_100, 0, 100_000).far == 100_000
    assert job(engine(), SSD, 8_100, 0, 8_000).far == 8_000
