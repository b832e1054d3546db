"""The contribution of each design of Tutti: leaving one out never makes anything faster."""

import pytest

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import COMMAND_S, LAYER_PASS_S, SSD_TUTTI, with_prp
from fleet.engine.tiers.loading import effective_bytes_per_s, paged
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.tiers.ablation import ablations
from fleet.systems.tiers.load import LEVAL
from fleet.systems.tiers.serving import TierCapacity, TieredEngine
from fleet.systems.tiers.study import Runs, Study, tiers_of

LAYOUT = layout_of(profile())


def test_the_time_of_a_prp_command_predicts_the_rate_of_sgl() -> None:
    """The published rates are 0.29 and 8.9 GB/s, a factor of 31; a page has 4 KiB, an object 128 KiB."""
    assert LAYOUT.object_bytes == 128 * 1024
    assert LAYOUT.object_bytes / COMMAND_S == pytest.approx(8.9e9, rel=0.05)


def test_prp_lists_load_a_thirty_second_of_the_drives_rate() -> None:
    prp = with_prp(SSD_TUTTI, LAYOUT.object_bytes)
    assert effective_bytes_per_s(prp, LAYOUT, 131_072) == pytest.approx(SSD_TUTTI.read_bytes_per_s / 32, rel=0.01)
    assert prp.write_bytes_per_s == pytest.approx(SSD_TUTTI.read_bytes_per_s / 32)
    assert with_prp(SSD_TUTTI, 1_024).read_bytes_per_s == SSD_TUTTI.read_bytes_per_s


def ttft_s(floor_s: float) -> dict[str, float]:
    """Return the TTFT without each part, at a load that reads with PRP lists do not saturate."""
    devices = {"as it is": SSD_TUTTI, **ablations(SSD_TUTTI, LAYOUT)}
    tokens = tiers_of(LAYOUT.bytes_per_token)["ssd-tutti"].tokens
    tiers = {name: TierCapacity(device, tokens) for name, device in devices.items()}
    engine = TieredEngine(paged(law_of(profile())), LAYOUT, 0.41e6, floor_s)
    study = Study(engine, tiers, LEVAL, Runs(3, 400, 1_000))
    return {name: study.ttft_s(name, 0.3) for name in tiers}


def test_leaving_any_design_out_is_slower_by_the_law_alone_and_prp_lists_are_the_slowest() -> None:
    times = ttft_s(floor_s=0.0)
    assert min(times, key=lambda name: times[name]) == "as it is"
    assert times["PRP lists"] > 3 * max(times["no overlap by layers"], times["naive writes"])
    assert times["all three"] > 3 * times["as it is"]


def test_the_fitted_minimum_of_a_pass_costs_more_than_overlapping_hides() -> None:
    """217 ms yield the published crossover; few prompts of figure 8 compute for that long."""
    times = ttft_s(LAYER_PASS_S)
    assert times["no overlap by layers"] < times["as it is"] < times["naive writes"] < times["all three"]
