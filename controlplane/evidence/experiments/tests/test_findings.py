"""The tables of docs/findings/: which arms are best or tied, and that every table exists."""

import argparse
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from bench import arms, by_class, costs, findings, own_fleet, sheets, unseen
from bench.played import DEMO, DESIGN, METRICS, Cell, Played, fleet_of, named, play, requests_of, spread
from controlplane.evidence.traces.formats import registry
from router.policy.schema import document as documents

FINDINGS = Path(__file__).resolve().parents[4] / "docs" / "findings"

SMALL = {"kv": "nixl", "prefill_instances": 3, "kv_blocks": 3_000}


def played(seconds, **changes):
    """A run of four requests, all with the same duration."""
    whole = Played((seconds,) * 4, (0.01,) * 4, (seconds,) * 4, (True,) * 4, 0.0, 0, 0.0, 0.0)
    return replace(whole, **changes)


def runs(**arms):
    return {arm: [played(value) for value in values] for arm, values in arms.items()}


@pytest.mark.parametrize(
    ("arms", "marked"),
    [
        (runs(a=(1.0, 1.1, 1.0), b=(2.0, 2.2, 2.1)), {"a"}),
        (runs(a=(1.0, 1.1, 1.0), b=(1.001, 1.102, 1.001)), {"a", "b"}),  # less than 1 %
        (runs(a=(1.0, 2.0, 3.0), b=(2.0, 2.1, 2.2)), {"a", "b"}),  # may be chance
        (runs(a=(1.0, 1.1, 1.0), b=(0.1, math.inf, 0.1)), {"a"}),  # one without an answer
    ],
)
def test_an_arm_is_tied_when_no_other_beats_it(arms, marked):
    assert findings.best_or_tied(arms, "ttft_p90") == marked


def test_a_hit_ratio_that_may_include_transferred_tokens_marks_no_arm():
    by_cache = {"A": [played(1.0, cached=0.1)] * 3, "static": [played(2.0, cached=1.0)] * 3}
    _, _, a, static = findings.table(by_cache, ("ttft_p90", "cached"))
    assert (a, static) == ("| A | **1.00 ± 0.00** | 10.0 ± 0.0 |", "| static | 2.00 ± 0.00 | 100.0 ± 0.0 |")
    for name in ("design", "thresholds", "bandwidths", "strategies"):
        head, *rows = sheets.read(name)
        assert not any("*" in row[head.index("cached or transferred, %")] for row in rows)


def test_refused_requests_are_infinitely_late_and_miss_the_slo():
    one = played(1.0, ttft=(1.0, 1.0, 1.0, math.inf), within=(True, True, True, False), refused=1)
    assert METRICS["ttft_p90"](one) == math.inf
    assert METRICS["goodput"](one) == 75.0


def test_the_default_policy_is_among_the_strategies():
    arms = [named(arm) for arm in findings.PEERS]
    played = [documents.apply_overrides(documents.default(arm["strategy"]), arm.get("overrides", {})) for arm in arms]
    assert documents.default() in played


def test_the_answers_of_a_cell_may_differ_in_length():
    def tokens(answers):
        return [one.output_tokens for one in requests_of(Cell(findings.GENERATED, 1.0, 30.0, "", answers), 1)[0]]

    assert tokens(6.0) == [6 * one for one in tokens(1.0)]
    assert set(tokens(0.0001)) == {1}


@pytest.mark.parametrize(
    ("name", "cells", "arm"),
    [
        ("traffic", 8, "least_requests"),
        ("roles", 4, "adaptive_offload"),
        ("weights", 2, "strategy.stall_weight 0.14"),
    ],
)
def test_the_default_is_compared_beyond_the_tables_of_its_pages(monkeypatch, name, cells, arm):
    def same(player, cell, arms, seeds):
        return runs(**{named(one)["name"]: (1.0,) * seeds for one in arms})

    monkeypatch.setattr(unseen.Player, "runs", same)
    player = unseen.Player(argparse.Namespace(traces="", seeds=None), None)
    lines = list(unseen.TABLES[name](player))
    assert sum(line.startswith(f"| {arm} | **1.00 ± 0.00**") for line in lines) == cells
    assert f"| priced | {cells} | {cells} | {cells} |" in lines


def of_classes(warm, heavy):
    """A run of two warm and two heavy requests, with their TTFT in s."""
    ttft = (*warm, *heavy)
    return played(1.0, ttft=ttft, e2e=tuple(one + 1 for one in ttft), classes=("warm", "warm", "heavy", "heavy"))


def test_an_arm_lists_gains_and_losses_by_class_unless_chance_explains_them():
    base = [of_classes((2.0, 2.0), (8.0, 8.0)), of_classes((2.2, 2.2), (8.8, 8.8)), of_classes((2.1, 2.1), (8.4, 8.4))]
    warm_gains = [
        of_classes((1.0, 1.0), (8.8, 8.8)),
        of_classes((1.1, 1.1), (8.0, 8.0)),
        of_classes((1.1, 1.1), (8.4, 8.4)),
    ]
    gains, pays = by_class.changes(base, warm_gains, by_class.CLASSES[::2])
    assert (gains, pays) == ("warm: TTFT p50 × 0.51, TTFT p90 × 0.51, E2E p50 × 0.67", "")
    assert by_class.changes(warm_gains, base, ("warm",)) == (
        "",
        "warm: TTFT p50 × 1.97, TTFT p90 × 1.97, E2E p50 × 1.50",
    )
    lost = [of_classes((math.inf, 1.0), (8.0, 8.0))] * 3
    assert by_class.changes(base, lost, ("warm",))[1] == "warm: TTFT p50 × ∞, TTFT p90 × ∞, E2E p50 × ∞"
    assert by_class.shares({"A": base}) == "50 % warm, 0 % medium, 50 % heavy"
    *_, row = by_class.table({"A": base, "B": warm_gains})
    assert row.startswith("| B | 1.07 / 1.07 / 10 / 2.07 | 8.40 / 8.40 / 10 / 9.40 | warm: TTFT p50 × 0.51")


def test_a_wall_shows_the_median_mean_and_peak_of_a_run():
    cell = Cell(DEMO, 4.0, 60.0, "")
    one = play(cell, {"strategy": "round_robin_pd", "fleet": {"replicas": 4, "engine": SMALL}}, 1)
    assert 0 < one.fullest_kv < one.middle_kv < one.peak_kv <= 1
    assert 0 < one.waits_for_kv <= one.waits <= 1


def test_the_load_of_a_fleet_is_proportional_to_the_prompts_that_it_can_compute():
    half, four_times, *others = (fleet.capacity / findings.ON.capacity for fleet in findings.FLEETS[1:])
    assert (half, four_times) == (0.5, 4.0)
    assert all(0.5 < scale < 10 for scale in others)
    asked = fleet_of({"fleet": findings.FLEETS[1].changes})
    assert len(asked.instances) == 4


def test_a_fleet_shrinks_until_it_misses_the_slo_and_the_smallest_that_met_it_has_a_cost(monkeypatch):
    def play(cell, arm, seed):
        size = arm["fleet"]["replicas"]
        return played(1.0, within=(size > seed,) * 4, output_per_s=100.0)

    monkeypatch.setattr(costs, "play", play)
    cell = Cell(DEMO, 1.0, 600.0, "")
    found = [costs.shrunk(cell, "lpwl", {}, seed) for seed in (2, 4, 8)]
    assert [one.instances for one in found] == [3, 5, 0]
    tier = {"dram_gb": 1_000}
    assert costs.dollars_per_hour(tier, 2) == pytest.approx(2 * (5 + 8.8))
    cells = [*costs.cells({}, found[:2])]
    assert cells[0] == "960"
    assert cells[1] == "111.11 ± 0.00"  # 40 $/h, 360,000 tokens
    assert cells[3].startswith("4.0 ± ")
    assert cells[4].startswith("480 ± ")
    assert [*costs.cells({}, found)][3:] == ["more than 8", "–", "–"]


def test_a_tier_costs_its_share_of_the_smallest_fleet_and_writes_wear_its_drives():
    small = played(1.0, drive_bytes=7e12, virtual_s=43_200.0, output_per_s=100.0)
    found = [costs.Shrunk(played(1.0), 2, small)]
    *_, dollars, _, writes, years = costs.tier_cells(costs.TUTTI, found)
    assert (dollars, writes, years) == (f"{24 * 2 * (5 + 14_000 * 0.000082):,.0f}", "0.50", "10.0")
    assert [*costs.tier_cells({}, [costs.Shrunk(played(1.0), 2, played(1.0))])][-2:] == ["–", "–"]


@pytest.mark.parametrize("name", findings.ON_PAGES)
def test_a_short_table_is_shown_on_its_page(name):
    text = (findings.PAGES / f"{name}.md").read_text()
    table = text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    assert table.count("\n|") >= 7
    assert f"(findings/{name}.md)" in findings.PAGES.with_suffix(".md").read_text()
    assert re.findall(r"\d%", text) == []


@pytest.mark.parametrize("name", set(findings.TABLES) - set(findings.ON_PAGES))
def test_a_long_table_is_a_file_to_which_a_page_links(name):
    assert len(sheets.read(name)) >= 6
    text = "".join(path.read_text() for path in findings.PAGES.glob("*.md"))
    assert f"(tables/{name}.csv)" in text
    assert re.findall(r"\d%", text) == []


def test_tables_with_equal_columns_become_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sheets, "FOLDER", tmp_path)
    head = ["", "| | TTFT, s |", "|---|---|"]
    lines = ["### Small", "", "**half** load", *head, "| A | **1.0** |", "", "**full** load", *head, "| A | 2.0 |"]
    sheets.write("some", [*lines, "", "| trace | n |", "|---|---|", "| agent | 3 |"])
    assert sheets.read("some") == [
        ["table", "arm", "TTFT, s"],
        ["Small: half load", "A", "1.0 *"],
        ["Small: full load", "A", "2.0"],
    ]
    assert sheets.read("some-2")[1:] == [["Small: full load", "agent", "3"]]
    again = sheets.updated("some", [["Small: half load", "A", "3.0"]], named_by=2)
    assert [row[-1] for row in again.values()] == ["3.0", "2.0"]


def section(name: str, title: str) -> list[list[str]]:
    """Return the rows of the table whose title begins like this."""
    return [row[1:] for row in sheets.read(name) if row[0].startswith(title)]


def rows_of(page: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a table on a page, by their first cells."""
    text = (FINDINGS / page).read_text().partition(f"**{title}**")[2]
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    return {row[0]: row for row in rows}


def rows_of_tiers() -> dict[str, list[str]]:
    return rows_of("tiers.md", "documents-reread, 2× load")


def test_the_page_of_findings_states_the_costs_and_tiers_of_its_tables():
    text, cost, tiers = (
        FINDINGS.with_suffix(".md").read_text(),
        rows_of("cost.md", "agentic-demo, 4× load"),
        rows_of_tiers(),
    )
    before, after = cost["round_robin"], cost["default"]
    ttft = [row[3].partition(" ±")[0] for row in (before, after)]
    assert f"TTFT p90 falls from {ttft[0]} to {ttft[1]} s" in text
    money = [float(row[5].partition(" ±")[0]) for row in (before, after)]
    assert f"{money[0] - money[1]:.0f} ± " in text
    assert f" $ of {money[0]:.0f} a day" in text
    names = ("14 TB of drives by Tutti", "256 GB of host memory", "14 TB of drives by LMCache")
    dollars = [round(float(tiers[name][5].partition(" ±")[0])) for name in names]
    assert all(f" {each} $" in text for each in dollars)
    assert tiers["HBM only"][3] == "more than 8"


def claim(begin: str) -> str:
    """Return the last column of a claim, which names the difference."""
    (row,) = (row for row in sheets.read("claims") if row[1].startswith(begin))
    return row[6]


def test_the_texts_about_agents_that_pause_agree_with_their_table():
    (_, *of_hbm), (_, *of_drives) = sheets.read("pauses")[1:]
    needed = [[int(one) for one in cells[0].split(", ")] for cells in (of_hbm, of_drives)]
    dollars = [[int(one) for one in cells[1].split(", ")] for cells in (of_hbm, of_drives)]
    for (_, _, engine), sizes, money in zip(costs.PAUSE_ARMS, needed, dollars, strict=True):
        assert money == [round(24 * costs.dollars_per_hour(engine, size)) for size in sizes]
    assert len(set(needed[1])) == 1
    text = (FINDINGS / "cost.md").read_text()
    assert f"need {min(needed[0])} or {max(needed[0])} engines, with drives {needed[1][0]} ([each seed]" in text
    middle, half = spread([before - after for before, after in zip(*dollars, strict=True)])
    assert middle < half
    said = f"{dollars[1][0]} $ a day instead of {min(dollars[0])} to {max(dollars[0])}, not surely less"
    assert f"{said} ({middle:.0f} ± {half:.0f} $)" in claim("agents' long histories")


@pytest.mark.slow
def test_the_engines_needed_by_agents_that_pause_are_those_of_the_twin():
    """The rows with drives are played with one seed; the others take just as long."""
    name, strategy, engine = costs.PAUSE_ARMS[1]
    (row,) = (row for row in sheets.read("pauses") if row[0] == name)
    assert costs.shrunk(costs.PAUSE_CELL, strategy, engine, 1).instances == int(row[1].split(", ")[0])


def test_the_causes_of_a_longer_tpot_agree_with_the_texts_and_with_the_authors_fleet():
    rows = {(trace, arm): cells for trace, arm, *cells in sheets.read("tpot")[1:]}
    for trace in ("coding agent", "agentic-design"):
        (same,) = (row for row in section("own-fleet", trace) if row[0] == "D at 9.7 GB/s, TPOT p90")
        assert same[3] == rows[trace, "D at 9.7 GB/s"][0]
    tail, prefills, beside = rows["agentic-design", "D at 9.7 GB/s"]
    instant, *_ = rows["agentic-design", "D, transfers in no time"]
    said = claim("expected: TPOT at most")
    assert f"D: p90 {tail} in agentic-design" in said
    assert f"prefills meet {float(prefills.split()[0]):.0f} % more decodes and answers more of each other" in said
    for cells in (tail, prefills, beside, instant):
        middle, _, half, _ = cells.split()
        assert float(middle) > float(half), "surely more"
    text = (FINDINGS / "design.md").read_text()
    assert f"TPOT p90 rises by {float(tail.split()[0]):g} % (there 6.9), also with transfers in no time" in text


@pytest.mark.slow
def test_the_causes_of_a_longer_tpot_are_those_of_the_twin():
    """Three of ten seeds are played; each result lies within the interval of all ten."""
    cell = Cell(DESIGN, 1.0, 600.0, "")
    documented = {arm: cells for trace, arm, *cells in sheets.read("tpot")[1:] if trace == DESIGN}
    for _, arm, *cells in own_fleet.causes(cell, (1, 2, 3)):
        for now, all_ten in zip(cells, documented[arm], strict=True):
            middle, _, half, _ = all_ten.split()
            assert abs(float(now.split()[0]) - float(middle)) <= 2 * float(half), arm


def test_the_text_about_tiers_agrees_with_its_table():
    rows = rows_of_tiers()
    tutti, gds, dram, lmcache, twice = (
        rows[name]
        for name in (
            "14 TB of drives by Tutti",
            "14 TB of drives by GDS",
            "256 GB of host memory",
            "14 TB of drives by LMCache",
            "the same, writing what is used twice",
        )
    )
    text = (FINDINGS / "tiers.md").read_text()
    mean = [row[3].partition(" ±")[0] for row in (gds, dram, lmcache)]
    assert f"Tutti's access to drives needs {tutti[3]} and GDS {mean[0]}:" in text
    assert f"Host memory needs {mean[1]} and" in text
    assert f"LMCache need {mean[2]}, though" in text
    life = f"wear out in {tutti[7]} years; writing only what is used twice gives them {twice[7].partition(' ±')[0]}"
    assert life in text
    assert (
        f"what is used twice gives them {twice[7].partition(' ±')[0]} and takes {twice[3].partition(' ±')[0]} engines."
        in text
    )


def test_the_text_about_thresholds_by_class_agrees_with_its_tables():
    text = (FINDINGS / "design.md").read_text()
    own, twice = ({row[0]: row for row in section("thresholds-2", f"conversation, {load}× load")} for load in (1, 2))
    c10, c20, c40, priced = (twice[name] for name in ("C at T=10k", "C at T=20k", "C at T=40k", "priced"))
    heavy = {row[0]: row[3].split(" / ") for row in twice.values()}
    paid = [re.search(r"heavy: TTFT p90 × ([\d.]+)", row[5])[1] for row in (c10, c20, c40, priced)]
    general = (FINDINGS.with_suffix(".md")).read_text()
    assert f"its TTFT is {heavy['C at T=40k'][0]} s instead of {heavy['A'][0]}." in text
    assert f"TTFT p90 × {paid[0]}, {paid[1]} and {paid[2]}." in text
    tails = [heavy[name][3] for name in ("C at T=10k", "C at T=20k", "A", "C at T=40k")]
    assert f"({tails[0]} and {tails[1]} instead of {tails[2]} ms) and not with 40,000 ({tails[3]})" in text
    assert f"the median heavy one {heavy['priced'][0]} s, with the longest tail: TTFT p90 × {paid[3]}" in text
    assert (
        f"TTFT p50 {heavy['C at T=40k'][0]} instead of {heavy['A'][0]} s), and p90 still loses (× {paid[2]})" in general
    )
    assert f"`priced` has {heavy['priced'][0]} s and × {paid[3]}" in general
    assert "heavy" not in "".join(row[4] for row in own.values())
    tails = {name: re.search(r"heavy: .*TPOT p90 × 1\.(\d+)", row[5]) for name, row in own.items()}
    risen = {name: int(tail[1]) for name, tail in tails.items() if tail}
    priced_rise = risen.pop("priced")
    assert f"by {min(risen.values())} to {max(risen.values())} %, under `priced` by {priced_rise}." in text


def test_the_text_about_the_authors_fleet_agrees_with_its_tables():
    text = (FINDINGS / "design.md").read_text()
    arms = {row[0]: row for row in section("own-fleet-2", "coding agent, 1× load")}
    tail = [arms[name][3].split(" / ")[3] for name in ("A", "B", "D at 9.7 GB-s")]
    assert f"heavy TPOT p90 is {tail[0]} ms under A, {tail[1]} under B and {tail[2]} under D" in text
    assert f"falls from {tail[0]} to {tail[2]} ms under D" in (FINDINGS.with_suffix(".md")).read_text()
    paid = re.search(r"heavy: TTFT p50 × ([\d.]+)", arms["D at 9.7 GB-s"][5])
    assert paid
    assert f"D is worse for heavy ones: TTFT p50 × {paid[1]}, in `agentic-design` × " in text
    assert "heavy: TPOT" not in arms["B"][4]  # "in no *gains*"
    there = {row[0]: row for row in section("own-fleet", "coding agent, 1× load")}
    times = 1 + float(there["4P+4D, TTFT p50"][3].split()[0]) / 100
    assert f"4P+4D has {times:.0f} times A's TTFT" in text
    walls = {row[0]: row for row in section("own-fleet-3", "coding agent, 1× load")}
    assert f"here it is {walls['static 6P2D'][4]}, with {walls['static 6P2D'][5]} in queues" in text


def test_the_text_about_sessions_with_the_designs_shares_agrees_with_its_tables():
    text = (FINDINGS / "design.md").read_text()
    changes, arms, walls = (
        {row[0]: row for row in section(name, "agentic-design")} for name in ("own-fleet", "own-fleet-2", "own-fleet-3")
    )
    full, waits = walls["static 6P2D"][2], walls["static 6P2D"][4]
    assert f"the decoders are {full} full in the middle of the run, {waits} of the TTFT waits for KV" in text
    here = [float(changes[name][3].split()[0]) for name in ("D at 9.7 GB/s, TPOT p90", "4P+4D, TTFT p50")]
    assert f"D's TPOT p90 rises by {here[0]:g} %" in text
    assert 1.8 < 1 + here[1] / 100 < 2.2  # "twice A's TTFT"
    assert all(changes[name][4] == "no difference in either" for name in changes if name.startswith("B, "))
    paid = re.search(r"heavy: TTFT p50 × ([\d.]+)", arms["D at 9.7 GB-s"][5])
    assert paid
    assert f"in `agentic-design` × {paid[1]}." in text
    tails = [re.search(r"heavy: .*?TPOT p90 × ([\d.]+)", arms[name][5]) for name in ("B", "D at 9.7 GB-s")]
    rises = [tail[1] for tail in tails if tail]
    assert "heavy TPOT p90 × {} under B and × {} under D.".format(*rises) in text
    percents = [f"{100 * (float(one) - 1):.0f} %" for one in rises]
    assert "it rises by {} under B and {} under D.".format(*percents) in FINDINGS.with_suffix(".md").read_text()
    costs_b = re.search(r"heavy: TTFT p50 × ([\d.]+).*E2E p50 × ([\d.]+)", arms["B"][5])
    assert costs_b
    assert f"B also costs heavy requests TTFT p50 × {costs_b[1]} and E2E p50 × {costs_b[2]}." in text


def test_every_measurement_that_contradicts_a_publication_is_in_the_text():
    text = (FINDINGS / "design.md").read_text().partition("**The other direction.**")[2].partition("\n")[0]
    found = [row for row in sheets.read("own-fleet")[1:] if row[5] == "the other direction"]
    assert found
    for trace, name, measured, _, here, _ in found:
        value = here.removesuffix(" %").replace("-", "−")
        sentence = next((one for one in re.split(r"\.(?= [A-Z]|$)", text) if value in one), "")
        assert trace.partition(",")[0] in sentence, name
        assert name.rpartition(", ")[2] in sentence, name
        assert measured in text, name


def test_sessions_of_real_engines_repeat_their_turns_and_begin_around_the_threshold():
    trace, turns = arms.sessions(argparse.Namespace(sessions=6, heavy=1_500)).encode(), {}
    once, again = (registry.read(trace, seed) for seed in (1, 2))
    assert [one.at_s for one in once.requests] != [one.at_s for one in again.requests], "a seed draws the starts"
    for one in once.requests:
        turns.setdefault(one.session, []).append([*chain(*one.blocks)])
    assert len(turns) == 6
    for first, *later in turns.values():
        assert 1_125 <= len(first) * arms.BLOCK_TOKENS <= 2_688
        assert len(later) == arms.TURNS - 1
        assert all(turn[: len(first) - 1] == first[:-1] for turn in later)
    assert len({turn[0][0] for turn in turns.values()}) == 6, "sessions share nothing"


def rows_of_arms():
    head, *rows = sheets.read("arms")
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_offloads_moved_kv_over_http_as_in_the_twin_and_the_other_arms_moved_none():
    assert {row["played"] for row in rows_of_arms()} == {"twin", "over HTTP"}
    assert all((row["KV moved"] != "0") is row["arm"].startswith("D") for row in rows_of_arms())


def test_two_real_engines_answered_every_request_moved_kv_without_a_failure_and_cached_what_was_predicted():
    a, d = (row for row in rows_of_arms() if row["fleet"] == "cpu-nixl")
    text = (FINDINGS / "design.md").read_text()
    for row in (a, d):
        answered, _, sent = row["requests"].partition(" of ")
        assert answered == sent
        assert int(sent) >= 60
        assert int(row["seeds"]) >= 2
        assert row["offloads without"] == "0"
        right, _, all_others = row["cached tokens predicted"].partition(" of ")
        assert right == all_others
        assert int(all_others) == int(sent) - int(row["KV moved"].split()[0])
    assert f"D moved the KV of {d['KV moved'].split()[0]} of {d['requests'].split()[-1]} prompts over NIXL" in text
    assert f"TTFT p50 is {d['TTFT p50, s']} s, under A {a['TTFT p50, s']}." in text


def test_the_text_about_arms_over_http_agrees_with_its_table():
    rows = [row for row in rows_of_arms() if row["fleet"].startswith("8 sim")]
    text = (FINDINGS / "design.md").read_text()
    said = {
        "TTFT p50, s": "TTFT p50 is {} s, in the twin {}:",
        "heavy: TPOT p90, ms": "heavy TPOT p90 is {} ms, in the twin {}.",
    }
    for column, words in said.items():
        values = ([row[column] for row in rows if row["played"] == how] for how in ("over HTTP", "twin"))
        assert words.format(*("{}, {} and {}".format(*each) for each in values)) in text


def test_the_text_about_the_wall_agrees_with_its_table():
    row = next(row for row in section("static", "") if row[0] == "conversation, 1×: static 6P2D")
    text = (FINDINGS / "design.md").read_text()
    assert f"{row[4]} of the TTFT waits for KV and {row[5]} in queues; the decoders are {row[1]} full" in text


def test_the_text_about_strategies_says_in_how_many_cells_each_is_best():
    won = {row[0]: row[1:] for row in section("strategies-2", "Best or tied")}
    text = (FINDINGS / "strategies.md").read_text()
    for name, arm in (("`priced`", "priced"), ("tokens", "adaptive_v1 at 40k"), ("`cache_aware`", "cache_aware")):
        assert f"{name} {won[arm][0]}, {won[arm][1]} and {won[arm][2]}" in text
    cells = Counter()
    for _, arm, *counts in sheets.read("fleets-2")[1:]:
        cells[arm] += sum(map(int, counts))
    assert f"`priced` is best or tied in {cells['priced']}, adaptive v1 from 40,000 tokens in" in text
    assert f"`smetric` in {cells['smetric']} and `lpwl` in {cells['lpwl']}." in text


@pytest.mark.parametrize(
    ("measured", "middle", "half", "word"),
    [
        (0.01, 0.01, 0.04, "no difference in either"),
        (0.5, 0.1, 0.2, "no difference here"),
        (0.01, 0.3, 0.1, "a difference only here"),
        (0.5, 0.3, 0.1, "the same direction"),
        (0.5, -0.3, 0.1, "the other direction"),
    ],
)
def test_a_measured_change_is_found_by_the_interval_of_the_seeds(measured, middle, half, word):
    assert own_fleet.verdict(measured, middle, half) == word


def test_instant_transfers_take_less_than_a_step():
    fleet = fleet_of({"fleet": {"engine": {"kv": "nixl", **own_fleet.INSTANT}}})
    (model,) = {one.transfers for one in fleet.instances.values()}
    assert model.seconds(10**9, 2, busy=True) < 0.0025


def test_the_text_about_classes_agrees_with_its_tables():
    found = []
    for load in ("1×", "2×"):
        rows = {row[0]: row for row in section("classes-2", f"coding agent, {load} load")}
        found += [rows[arm][1].partition(" /")[0] for arm in ("A", "B")]
    own, twice = f"{found[0]} s under A and {found[1]} under B", f"{found[2]} and {found[3]} at twice"
    assert f"warm TTFT p50 is {own} at their own rate, {twice}" in (FINDINGS / "design.md").read_text()
