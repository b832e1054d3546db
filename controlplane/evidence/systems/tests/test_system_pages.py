"""Rules for every system: its page, its REST route, and the declaration of its inputs."""

import html
import json
import math
import re
import time
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from bench import sheets
from controlplane.common.computing import WAITING
from controlplane.evidence.systems.registry import SYSTEMS, ask, figures, inputs_of
from controlplane.evidence.systems.system import Answer, Chart, Fact, System, Table
from controlplane.evidence.systems.templatetags.systems import as_table, lead, quantity, rest
from controlplane.testing import ApiCaller, api_caller
from fleet.kinds.options.option import options_of
from router.contract.values.problem import InvalidInput

pytestmark = pytest.mark.django_db  # a page may read traces
DOCS = Path(__file__).resolve().parents[4] / "docs"
EVERY = pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.slug)
ANSWER_S = 4.0  # CPU time on a busy machine: a page must not make its reader wait


@pytest.fixture
def vera_api(vera: User) -> ApiCaller:
    return api_caller(vera)


def numbers(answer: Answer) -> list[float]:
    cells = [fact.value for fact in answer.facts]
    cells += [value for chart in answer.charts for line in chart.series for value in (*line.x, *line.y)]
    cells += [value for table in answer.tables for row in table.rows for value in row]
    return [value for value in cells if isinstance(value, int | float)]


@pytest.mark.slow
@EVERY
def test_every_preset_is_answered_within_seconds(system: System) -> None:
    for preset in system.presets.values():
        start = time.process_time()
        answer = system.compute(inputs_of(system, preset))
        assert time.process_time() - start < ANSWER_S
        assert answer.verdict.endswith(".")
        assert all(map(math.isfinite, numbers(answer)))


@EVERY
def test_pictures_and_tables_are_complete(system: System) -> None:
    answer = ask(system, {})
    for chart in answer.charts:
        assert 0 < len(chart.series) <= 6
        assert all(len(line.x) == len(line.y) for line in chart.series)
        assert_table(as_table(chart))
    for table in answer.tables:
        assert_table(table)


def assert_table(table: Table) -> None:
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}


@EVERY
def test_the_inputs_have_limits_a_title_and_a_help(system: System) -> None:
    for one in options_of(system.inputs):
        assert one.title
        assert one.help.endswith(".")
        if one.kind in ("int", "float"):
            assert None not in (one.minimum, one.maximum), one.name
    grouped = [name for group in system.groups for name in group.names]
    assert set(grouped) <= {one.name for one in options_of(system.inputs)}
    assert len(set(grouped)) == len(grouped)


@pytest.mark.slow
@EVERY
def test_each_limit_of_an_input_is_answered_or_refused_with_its_path(system: System) -> None:
    options = options_of(system.inputs)
    small = {one.name: int(one.minimum or 0) for one in options if one.name in ("runs", "requests")}
    for one in options:
        for value in (one.minimum, one.maximum) if one.kind in ("int", "float") else one.choices:
            given = int(value) if one.kind == "int" else value
            assert is_sound(system, small | {one.name: given}), (one.name, given)


def is_sound(system: System, given: dict[str, Any]) -> bool:
    try:
        return all(map(math.isfinite, numbers(system.compute(inputs_of(system, given)))))
    except InvalidInput as error:
        return all(problem.path and problem.allowed for problem in error.problems)


ODD = ("0", "-1", "1e308", "NaN", "inf", "", "x", '<b class="odd">')


@pytest.mark.slow
@pytest.mark.timeout(300)
@EVERY
def test_any_text_in_an_input_is_answered_or_refused_on_a_page(vera_client: Client, system: System) -> None:
    options = options_of(system.inputs)
    small = {one.name: str(int(one.minimum or 0)) for one in options if one.name in ("runs", "requests")}
    in_turn = cycle(zip(ODD, ODD[3:] + ODD[:3], strict=True))  # each text in an eighth of the inputs
    for name, text in ((one.name, text) for one, texts in zip(options, in_turn, strict=False) for text in texts):
        page = vera_client.get(f"/systems/{system.slug}/", small | {name: text})
        content = page.content.decode().replace(html.escape(text), "") if text else page.content.decode()
        assert page.status_code in (200, 422), (name, text)
        assert not re.search(r"\b(None|[Nn]a[Nn]|inf|Infinity)\b|<b class", content), (name, text)
        assert page.status_code == 200 or 'aria-invalid="true"' in content, (name, text)


@EVERY
def test_the_page_shows_the_verdict_every_input_and_every_published_value(vera_client: Client, system: System) -> None:
    page = vera_client.get(f"/systems/{system.slug}/")
    content = page.content.decode()
    assert page.status_code == 200
    verdict = ask(system, {}).verdict
    assert all(part.split("'")[0] in content for part in (lead(verdict), rest(verdict)))
    assert set(re.findall(r'name="(\w+)"', content)) >= {one.name for one in options_of(system.inputs)}
    assert f'hx-get="/systems/{system.slug}/figures/"' in content


@EVERY
def test_the_documentation_names_every_system(system: System) -> None:
    assert f"| `{system.slug}` |" in (DOCS / "systems.md").read_text()


STATES = ("real", "simulated", "formula", "fitted", "not modelled")


def test_every_claim_is_in_the_table_with_its_evidence_or_the_reason_for_none() -> None:
    rows = sheets.read("claims")[1:]
    assert len({(publication, claim) for publication, claim, *_ in rows}) == len(rows) > 200
    for _, claim, state, where, shown, agrees, why in rows:
        assert state in STATES, claim
        assert (shown == "–") is (where == "") is (state == "not modelled"), claim
        assert not where or (DOCS.parent / where).is_file(), claim
        assert shown in "✔◐–", claim
        assert agrees in ("yes", "partly", "no", "–"), claim
        assert (why == "") is (shown == "✔" and agrees == "yes"), claim


def of_figure_8(tier: str) -> tuple[tuple[str, str], ...]:
    """Figure 8 by the model alone, computed event by event, with nothing fitted."""
    return (
        ("tutti", f"LEval, 1.5 requests/s: mean TTFT, {tier}"),
        ("tutti-played", f"Figure 8, 1.5 requests/s: mean TTFT, {tier}"),
        ("tutti", f"The same with nothing fitted to it, {tier} ("),
    )


Places = tuple[tuple[str, str], ...]
OWN_LEVAL = "L-Eval's own documents, 1.5 requests/s"
# A claim with a published value: the tables and rows with that value, beside ours.
VALUES: dict[str, tuple[str, str] | Places] = {
    "figure 2: the bubble of GDS": ("tutti", "Bubble, 64K, 75 % cached, not by layers, LMCache-GDS"),
    "figure 2: the bubble of LMCache-SSD": ("tutti", "Bubble, 64K, 75 % cached, not by layers, LMCache-SSD"),
    "figure 2: the bubble of DRAM": ("tutti", "Bubble, 64K, 75 % cached, not by layers, LMCache-DRAM"),
    "figure 6: reads and writes": ("tutti", "Drop of two drives' rate"),
    "figure 8: HBM": of_figure_8("HBM only"),
    "figure 8: LMCache-SSD": of_figure_8("LMCache-SSD"),
    "figure 8: GDS": of_figure_8("LMCache-GDS"),
    "figure 8: DRAM": of_figure_8("LMCache-DRAM"),
    "figure 8: Tutti": of_figure_8("Tutti"),
    "69.1 % below DRAM": (
        ("tutti", "LEval: TTFT of Tutti below LMCache-DRAM"),
        ("tutti", "The same with nothing fitted to it: TTFT of Tutti below"),
    ),
    "78.3 % below GDS": ("tutti", "LEval: TTFT of Tutti below LMCache-GDS"),
    "LooGLE: 62.0 % below GDS": ("tutti", "LooGLE, 0.6 requests/s: TTFT of GDS"),
    "LooGLE: 93.2 % below DRAM": ("tutti", "LooGLE, 0.6 requests/s: TTFT of DRAM"),
    "ITL 22.0 % below DRAM": ("tutti-played", f"{OWN_LEVAL}: ITL of Tutti below LMCache-DRAM, answers of 740"),
    "ITL 24.4 % below GDS": ("tutti-played", f"{OWN_LEVAL}: ITL of Tutti below LMCache-GDS, answers of 740"),
    "figure 9: 25.9 GB/s": ("tutti", "Retrieving 128K tokens, Tutti"),
    "figure 9: GDS": ("tutti", "Retrieving 128K tokens, LMCache-GDS"),
    "figure 9: stores": ("tutti", "Storing, "),
    "figure 11: Tutti up to": ("tutti", "TTFT of Tutti below DRAM, 16K to 96K"),
    "figure 11: DRAM 20.6 %": ("tutti", "TTFT of DRAM below Tutti, "),
    "figure 11: 5.8 to 61.4": ("tutti", "TTFT of Tutti below GDS, "),
    "figure 12: 640K": ("tutti", "GLM-4-9B-1M on two H100: 640K cached tokens, Tutti ("),
    "figure 13: crossover of LMCache-SSD": ("tutti", "Crossover, LMCache-SSD"),
    "figure 13: crossover of DRAM": ("tutti", "Crossover, LMCache-DRAM by layers"),
    "figure 13: crossover of Tutti": ("tutti", "Crossover, Tutti"),
    "figure 13: a bubble of 6 ms": ("tutti", "Bubble of Tutti, 32K, 93.75"),
    "figure 13: a mean bubble": ("tutti", "Bubble of Tutti, mean"),
    "figure 14: 66.2": ("tutti", "LooGLE: cost of Tutti below LMCache-SSD"),
    "figure 14: 27 %": ("tutti", "LooGLE: cost of Tutti below LMCache-GDS"),
    "table 1: hits": (("tutti", "LEval: hits, "), ("tutti", "LEval's own documents: hits, ")),
    "8.9 GB/s of SGL": ("tutti", "SGL, objects of 128 KiB"),
}
LAW_ALONE = "by the law alone"  # rows that our model alone gives


@pytest.mark.parametrize("claim", VALUES)
def test_a_published_value_agrees_within_ten_per_cent_and_in_part_within_a_quarter(claim: str) -> None:
    (_, _, state, _, _, agrees, _) = next(row for row in sheets.read("claims")[1:] if row[1].startswith(claim))
    places = VALUES[claim]
    found = [rows_at(*place) for place in ([places] if isinstance(places[0], str) else places)]  # type: ignore[misc]
    assert all(found)
    off = [abs(ours / said - 1) for said, ours, _ in chain(*found)]
    assert agrees == ("yes" if max(off) <= 0.1 else "partly" if max(off) <= 0.25 or min(off) <= 0.1 else "no"), off
    assert (state == "fitted") is (found[0][0][2] == "fitted")


def rows_at(name: str, begin: str) -> list[tuple[float, float, str]]:
    """Return (published, ours, basis) of the rows whose table has this beginning."""
    columns, *rows = sheets.read(name)
    said, ours = (columns.index(one) for one in ("published", "event by event" if name == "tutti-played" else "model"))
    mine = [row for row in rows if row[0].startswith(begin) and LAW_ALONE not in row[0]]
    return [(float(row[said].split()[0]), float(row[ours].split()[0]), row[-1]) for row in mine]


@pytest.mark.parametrize(
    ("claim", "values"),
    [
        ("tables 1 to 4 and figure 3", "An iteration, 8,192 x 0.8–1, MNT 32,768"),
        ("12 % of the time is waiting", "Waiting, prompts up to 20 % shorter (CV 6.4 %)"),
        ("12 % of the time is waiting", "Waiting at a CV of 20 %, about"),
        ("table 3a: the gain in TPS/GPU", "TPS/GPU by prompt"),
        ("table 3b: at MNT 16,384", "TPS/GPU by MNT"),
        ("TTFT of table 6", "TTFT of DWDP by TPS/user, closed loop"),
        ("computing slowed by the copy", "Computing, copies without power"),
        ("NVLink 4 is infeasible", "Verdict by link: window over copy with the GPU's own window"),
    ],
)
def test_a_claim_agrees_if_none_of_its_rows_deviates(claim: str, values: str) -> None:
    (found,) = (row for row in sheets.read("claims") if row[1].startswith(claim))
    (compared,) = (row for row in sheets.read("dwdp") if row[0] == values)
    assert (found[5] == "yes") is (compared[5] == "–")


def test_the_page_has_the_tallies_of_the_claims() -> None:
    rows, page = sheets.read("claims")[1:], (DOCS / "systems.md").read_text()
    for publication in dict.fromkeys(row[0] for row in rows):
        mine = [row[2:] for row in rows if row[0] == publication]
        counts = [sum(state == one for state, *_ in mine) for one in STATES]
        shown = sum({"✔": 100, "◐": 50, "–": 0}[one] for _, _, one, *_ in mine) / len(mine)
        agree = 100 * sum(one == "yes" for *_, one, _ in mine) / len(mine)
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {publication} |"))
        _, _, *cells, told, _before, told_agree, _ = line.split(" | ".strip())
        assert [int(one) for one in cells] == counts
        assert (told.strip(), int(told_agree)) == (f"{shown:.1f}", round(agree)), publication


def test_a_wrong_input_is_reported_beside_its_field_and_keeps_what_was_typed(vera_client: Client) -> None:
    page = vera_client.get("/systems/tutti/?object_tokens=many&rate=50")
    content = page.content.decode()
    assert page.status_code == 422
    assert "&quot;many&quot; is not allowed; allowed: a whole number from 1 to" in content
    assert "50 is above 20; allowed: a number from 0.01 to 20 requests/s" in content
    assert 'value="many"' in content
    assert "Please correct 2 inputs." in content
    assert "system-verdict" not in content


def test_a_preset_is_a_link_that_is_marked_when_it_is_shown(vera_client: Client) -> None:
    first, second = [dict(values) for values in SYSTEMS["tutti"].presets.values()][:2]
    content = vera_client.get("/systems/tutti/", second).content.decode()
    marked = re.findall(r'<a class="badge" href="([^"]*)" aria-current="true"', content)
    assert len(marked) == 1
    assert all(name in marked[0] for name in second)
    assert first != second


def test_the_list_links_to_every_system(vera_client: Client) -> None:
    content = vera_client.get("/systems/").content.decode()
    assert all(f'href="/systems/{slug}/"' in content for slug in SYSTEMS)
    assert '<a href="/systems/" aria-current="page">' in content


def test_the_list_computes_one_system_after_another_and_lets_other_pages_take_turns(vera_client: Client) -> None:
    content = vera_client.get("/systems/").content.decode()
    (queued,) = re.findall(r'<ul [^>]*hx-sync="this:queue all">(.*?)\n</ul>', content, re.DOTALL)
    assert queued.count(' hx-get="/systems/') == content.count(' hx-get="/systems/') == len(SYSTEMS) > WAITING


def test_an_unknown_system_is_not_found(vera_client: Client, vera_api: ApiCaller) -> None:
    assert vera_client.get("/systems/none/").status_code == 404
    assert vera_client.get("/systems/none/figures/").status_code == 404
    for refused in (vera_api.post("/systems/none", {}), vera_api.get("/systems/none/figures")):
        assert refused.status_code == 404
        assert "tutti" in refused.json()["detail"]


@pytest.mark.slow  # simulates runs of several publications
@EVERY
def test_published_values_are_compared_on_a_page_and_over_rest(
    vera_client: Client, vera_api: ApiCaller, system: System
) -> None:
    found = figures(system.slug)
    assert all(figure.source and math.isfinite(figure.ours) for figure in found)
    for headers in ({}, {"HX-Request": "true"}):
        content = vera_client.get(f"/systems/{system.slug}/figures/", headers=headers).content.decode()
        assert content.count('<th scope="row">') == len(found)
        assert ("<html" in content) is not bool(headers)
    assert content.count(" $</td>") == 0
    listed = vera_api.get(f"/systems/{system.slug}/figures").json()
    assert [each["error"] for each in listed["figures"]] == [figure.error for figure in found]
    assert listed["notes"] == list(system.notes)


def test_pages_need_a_sign_in(client: Client, db: None) -> None:
    assert client.get("/systems/").status_code == 302
    assert client.get("/systems/tutti/").status_code == 302


def test_a_viewer_can_list_and_compute_over_rest(vera_api: ApiCaller) -> None:
    listed = {each["slug"]: each for each in vera_api.get("/systems").json()}
    assert listed.keys() == SYSTEMS.keys()
    assert {one["name"] for one in listed["tutti"]["inputs"]} == {
        one.name for one in options_of(SYSTEMS["tutti"].inputs)
    }
    answer = vera_api.post("/systems/tutti", {})
    assert answer.status_code == 200
    assert answer.json()["verdict"] == ask(SYSTEMS["tutti"], {}).verdict
    assert answer.json()["charts"]


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"object_tokens": 0}, "object_tokens", "0 is below 1; allowed: a whole number from 1 to"),
        ({"object_tokens": "many"}, "object_tokens", '"many" is not allowed; allowed: a whole number from 1 to'),
        ({"object_token": 1}, "object_token", "unknown option; did you mean object_tokens?"),
    ],
)
def test_wrong_inputs_over_rest_get_path_and_range(vera_api: ApiCaller, body: Any, path: str, message: str) -> None:
    refused = vera_api.post("/systems/tutti", {"inputs": body})
    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert (fault["path"], fault["value"]) == (f"inputs.{path}", body[path])
    assert message in fault["message"]


def test_an_unknown_field_beside_the_inputs_is_refused(vera_api: ApiCaller) -> None:
    assert vera_api.post("/systems/tutti", {"input": {}}).status_code == 422


def test_the_pictures_are_returned_as_data(vera_client: Client) -> None:
    content = vera_client.get("/systems/tutti/").content.decode()
    found = re.search(r'<script id="system-charts" type="application/json">(.+?)</script>', content)
    assert found is not None
    charts = json.loads(found[1])
    assert [chart["title"] for chart in charts] == [chart.title for chart in ask(SYSTEMS["tutti"], {}).charts]
    assert content.count("data-chart=") == content.count("View as table") == len(charts)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1184.0, "ms", "1.18 s"), (2.7, "", "2.7"), (0.0239, "$ per million tokens", "$0.0239 per million tokens")],
)
def test_a_figure_is_written_as_on_other_pages(value: float, unit: str, shown: str) -> None:
    assert quantity(Fact("Figure", value, unit)) == shown


def test_a_table_of_a_picture_has_a_row_for_each_x_of_any_line() -> None:
    from controlplane.evidence.systems.system import Axis, Series

    chart = Chart("T", Axis("n"), Axis("s", "ms"), (Series("a", (2, 1), (0.2, 0.1)), Series("b", (2, 3), (None, 0.3))))
    assert as_table(chart).columns == ("n", "a", "b")
    assert as_table(chart).rows == ((1, 0.1, None), (2, 0.2, None), (3, None, 0.3))
