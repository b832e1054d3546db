"""The tables of docs/findings/: what counts as best or tied, and that each is there."""

import math
import re
from dataclasses import replace

import pytest

from bench import findings
from bench.played import DEMO, METRICS, Cell, Played, fleet_of, named
from router.policy.schema import document as documents


def played(seconds, **changes):
    """A run of four requests that all took this long."""
    whole = Played((seconds,) * 4, (0.01,) * 4, (seconds,) * 4, (True,) * 4, 0.0, 0, 0.0, 0.0)
    return replace(whole, **changes)


def runs(**arms):
    return {arm: [played(value) for value in values] for arm, values in arms.items()}


@pytest.mark.parametrize(
    ("arms", "marked"),
    [
        (runs(a=(1.0, 1.1, 1.0), b=(2.0, 2.2, 2.1)), {"a"}),
        (runs(a=(1.0, 1.1, 1.0), b=(1.001, 1.102, 1.001)), {"a", "b"}),  # less than 1 %
        (runs(a=(1.0, 2.0, 3.0), b=(2.0, 2.1, 2.2)), {"a", "b"}),  # by chance
        (runs(a=(1.0, 1.1, 1.0), b=(0.1, math.inf, 0.1)), {"a"}),  # does not answer
    ],
)
def test_an_arm_is_tied_when_no_other_beats_it(arms, marked):
    assert findings.best_or_tied(arms, "ttft_p90") == marked


def test_requests_that_were_refused_are_late_and_outside_of_the_slo():
    one = played(1.0, ttft=(1.0, 1.0, 1.0, math.inf), within=(True, True, True, False), refused=1)
    assert METRICS["ttft_p90"](one) == math.inf
    assert METRICS["goodput"](one) == 75.0


def test_the_default_policy_is_among_the_strategies():
    (arm,) = [arm for arm in map(named, findings.PEERS) if arm["name"] == findings.DEFAULT["name"]]
    chosen = documents.apply_overrides(documents.default(arm["strategy"]), arm["overrides"])
    assert chosen == documents.default()


def test_fleets_are_loaded_by_the_prompts_that_they_can_compute():
    half, four_times, *others = (fleet.capacity / findings.ON.capacity for fleet in findings.FLEETS[1:])
    assert (half, four_times) == (0.5, 4.0)
    assert all(0.5 < scale < 10 for scale in others)
    asked = fleet_of({"fleet": findings.FLEETS[1].changes})
    assert len(asked.instances) == 4


def test_a_fleet_shrinks_until_it_misses_the_slo_and_costs_what_is_left(monkeypatch):
    def play(cell, arm, seed):
        size = arm["fleet"]["replicas"]
        return played(1.0, within=(size > seed,) * 4, output_per_s=100.0)

    monkeypatch.setattr(findings, "play", play)
    cell = Cell(DEMO, 1.0, 600.0, "")
    found = [findings.shrunk(cell, "lpwl", {}, seed) for seed in (2, 4, 8)]
    assert [one.instances for one in found] == [3, 5, 0]
    tier = {"dram_gb": 1_000}
    assert findings.dollars_per_hour(tier, 2) == pytest.approx(2 * (5 + 8.8))
    cells = [*findings._cost_cells({}, found[:2])]
    assert cells[0] == "960"
    assert cells[1] == "111.11 ± 0.00"  # 40 $/h, 360,000 tokens
    assert cells[3].startswith("4.0 ± ")
    assert cells[4].startswith("480 ± ")
    assert [*findings._cost_cells({}, found)][3:] == ["more than 8", "–", "–"]


@pytest.mark.parametrize("name", findings.TABLES)
def test_every_table_has_its_page_to_which_the_conclusions_link(name):
    text = (findings.PAGES / f"{name}.md").read_text()
    table = text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    assert table.count("\n|") >= 7
    assert f"(findings/{name}.md)" in findings.PAGES.with_suffix(".md").read_text()
    assert re.findall(r"\d%", text) == []
