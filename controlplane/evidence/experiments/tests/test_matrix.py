"""Matrices: cells in the twin, their heat table, the pages of cells, resuming, and presets."""

import csv
import html
import io
import json
import re

import pytest

from controlplane.evidence.experiments import running
from controlplane.evidence.experiments.matrix import summary
from controlplane.evidence.experiments.matrix.body import MatrixIn
from controlplane.evidence.experiments.matrix.presets import PEERS, presets
from controlplane.evidence.experiments.models import Experiment, Matrix, Run
from controlplane.evidence.experiments.results import assemble
from controlplane.evidence.experiments.results.metrics import MAIN
from controlplane.evidence.experiments.tests.conftest import body
from controlplane.evidence.experiments.tests.test_comparison import difference
from fleet import jobs
from fleet.models import Pool
from fleet.selectors import store_pool

BODY = {"name": "Strategies", "traces": ["agentic-demo"], "loads": [1, 2], "pool": "demo", "duration_s": 20}
BODY |= {"arms": ["round_robin", "lpwl"], "slo": {"all": {"ttft_ms": 60_000}}}
pytestmark = pytest.mark.django_db


@pytest.fixture
def started(ci, demo_pool, sent, data_dir):
    def start(**changes) -> Matrix:
        answer = ci.post("/matrices", BODY | changes)
        assert answer.status_code == 201, answer.content
        return Matrix.objects.get(pk=answer.json()["id"])

    return start


def perform(matrix):
    for cell in matrix.cells.order_by("pk"):
        running.run_experiment(cell.pk)


def test_each_trace_at_each_load_is_a_cell_with_its_heat_and_its_comparison(started, ci, vera_client, sent):
    matrix = started(expect=[{"metric": "within_slo", "min": 0.5}])
    assert [args for _, args, _ in sent] == [[cell.pk] for cell in matrix.cells.order_by("pk")]
    perform(matrix)
    found = ci.get(f"/matrices/{matrix.pk}").json()
    assert (found["status"], found["verdict"], found["runs_done"], found["counts"]) == ("done", "pass", 4, {"done": 2})
    results = ci.get(f"/matrices/{matrix.pk}/results").json()
    assert results["arms"] == ["round_robin", "lpwl"]
    first, second = results["cells"]
    assert (first["load_factor"], second["load_factor"]) == (1, 2)
    cell = ci.get(f"/experiments/{first['id']}/results").json()
    compared = next(row for row in cell["differences"] if (row["baseline"], row["metric"]) == ("lpwl", "ttft_p90_ms"))
    assert first["values"]["all"]["ttft_p90_ms"]["lpwl"] == compared["reference"]
    assert first["best_or_tied"] == cell["best_or_tied"]
    rows = list(csv.DictReader(io.StringIO(ci.get(f"/matrices/{matrix.pk}/results?format=csv").content.decode())))
    assert {row["load"] for row in rows} == {"1.0", "2.0"}
    assert {row["metric"] for row in rows} >= {"ttft_p90_ms", "goodput", "balance"}
    page = vera_client.get(f"/experiments/matrix/{matrix.pk}/?metric=goodput&class=warm").content.decode()
    assert "Goodput: answers within the SLO, class warm" in page
    assert f'href="/experiments/{first["id"]}/?class=warm"' in page
    assert f">Matrix {matrix.pk}<" in vera_client.get(f"/experiments/{first['id']}/").content.decode()


def test_a_matrix_that_ended_in_an_older_version_has_the_marks_of_its_cells_pages(
    started, ci, vera_client, monkeypatch
):
    matrix = started(loads=[1])
    perform(matrix)
    cell = matrix.cells.get()
    path = assemble.path_of(cell)
    kept = json.loads(path.read_bytes())
    rows = [
        difference(metric, arm=arm, baseline=base, verdict=verdict)
        for metric in MAIN
        for arm, base, verdict in (("lpwl", "round_robin", "better"), ("round_robin", "lpwl", "worse"))
    ]
    kept["signature"][0] = assemble.FIRST_JUDGED_JOINTLY - 1
    path.write_text(json.dumps(kept | {"results": kept["results"] | {"differences": rows}}))
    by_itself = {"all": {metric: ["lpwl"] for metric in MAIN}}
    Experiment.objects.update(summary={"values": cell.summary["values"], "best_or_tied": by_itself})

    def marks():
        (found,) = ci.get(f"/matrices/{matrix.pk}/results").json()["cells"]
        rows = csv.DictReader(io.StringIO(ci.get(f"/matrices/{matrix.pk}/results?format=csv").content.decode()))
        said = {row["arm"]: row["best_or_tied"] for row in rows if (row["class"], row["metric"]) == ("all", MAIN[0])}
        page = vera_client.get(f"/experiments/matrix/{matrix.pk}/?metric={MAIN[0]}").content.decode()
        return found["best_or_tied"], said, page.count("1/1")

    together = {metric: [arm["name"] for arm in cell.arms] for metric in MAIN}
    assert marks()[0]["all"] == together
    read = assemble.read
    monkeypatch.setattr(assemble, "read", pytest.fail)
    assert marks()[1:] == ({"round_robin": "True", "lpwl": "True"}, 2), "read once, for all views"
    monkeypatch.setattr(assemble, "read", read)
    assert ci.get(f"/experiments/{cell.pk}/results").json()["best_or_tied"] == marks()[0]


def test_the_list_shows_a_matrix_once_and_its_cells_only_on_request(started, ci, vera_client):
    matrix = started()
    page = vera_client.get("/experiments/").content.decode()
    assert f'href="/experiments/matrix/{matrix.pk}/"' in page
    assert "agentic-demo × 2" not in page
    assert ci.get("/experiments").json() == []
    assert len(ci.get(f"/experiments?matrix={matrix.pk}").json()) == 2
    assert [row["id"] for row in ci.get("/matrices").json()] == [matrix.pk]
    assert ci.get(f"/matrices?before={matrix.pk}").json() == []
    assert ci.get("/matrices/99").status_code == vera_client.get("/experiments/matrix/99/").status_code == 404


def test_lists_read_no_large_fields(started, vera_client, django_assert_max_num_queries):
    started()
    with django_assert_max_num_queries(30) as seen:
        vera_client.get("/experiments/table")
    assert not [query for query in seen.captured_queries if '"record"' in query["sql"] or '"summary"' in query["sql"]]


@pytest.mark.slow
def test_a_resumed_matrix_keeps_the_runs_that_are_done(started, ci):
    matrix = started()
    first = matrix.cells.order_by("pk")[0]
    running.run_experiment(first.pk)
    Experiment.objects.filter(pk=first.pk).update(status="failed", cause="worker lost")
    done, lost = first.runs.all()
    Run.objects.filter(pk=lost.pk).update(status="failed", cause="worker lost")
    assert ci.post(f"/matrices/{matrix.pk}/cancel").json()["status"] == "failed"
    resumed = ci.post(f"/matrices/{matrix.pk}/resume").json()
    assert (resumed["status"], resumed["counts"]) == ("queued", {"queued": 2})
    ended_at = done.ended_at
    perform(matrix)
    done.refresh_from_db()
    assert done.ended_at == ended_at
    assert ci.get(f"/matrices/{matrix.pk}").json()["counts"] == {"done": 2}
    assert ci.post(f"/matrices/{matrix.pk}/resume").json()["counts"] == {"done": 2}


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"traces": ["nowhere.jsonl", "agentic-demo"]}, "traces.0", "there is no trace"),
        ({"loads": [0]}, "loads.0", "from 0.05 to 20"),
        ({"loads": [1, 1]}, "loads", "each may occur once"),
        (
            {"seeds": list(range(20)), "loads": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "arms": ["lpwl"] * 3},
            "seeds",
            "at most 500",
        ),
        ({"arms": ["nothing@1"]}, "arms.0", "nothing"),
        ({"arms": ["lpwl fleet.kv_blocks=1"]}, "arms.0.fleet.engine.kv_blocks", "16"),
        ({"pool": "real"}, "pool", "calibrate"),
        ({"expect": [{"metric": "nothing", "max": 1}]}, "expect.0.metric", "allowed"),
    ],
)
def test_each_problem_is_reported_once_by_path(ci, demo_pool, sent, changes, path, message):
    answer = ci.post("/matrices", BODY | changes)
    assert answer.status_code == 422
    found = [error for error in answer.json()["errors"] if error["path"] == path]
    assert len(found) == 1
    assert message in found[0]["message"]
    assert not sent
    assert not Matrix.objects.exists()


def test_the_form_starts_resumes_and_cancels_for_operators(otto_client, vera_client, demo_pool, sent):
    form = {"name": "From the form", "trace": ["agentic-demo"], "load_factor": "0.5, 1", "pool": "demo", "seeds": "1 2"}
    form |= {
        "mode": "twin",
        "duration_s": "20",
        "more_arms": 'lpwl\n{"strategy": "lpwl", "name": "more", "fleet": {"replicas": 4}}',
    }
    assert vera_client.post("/experiments/new", form).status_code == 403
    answer = otto_client.post("/experiments/new", form)
    matrix = Matrix.objects.get()
    assert answer.headers["Location"] == f"/experiments/matrix/{matrix.pk}/"
    assert Run.objects.count() == 8
    page = otto_client.post(f"/experiments/matrix/{matrix.pk}/cancel", follow=True).content.decode()
    assert "Resume 2 cells" in page
    page = otto_client.post(f"/experiments/matrix/{matrix.pk}/resume", follow=True).content.decode()
    assert "Cancel matrix" in page
    wrong = otto_client.post("/experiments/new", form | {"load_factor": "fast", "slo": "{", "more_arms": "x y"})
    text = wrong.content.decode()
    assert wrong.status_code == 422
    assert 'value="fast"' in text
    assert "from 0.05 to 20" in text


def test_the_form_keeps_the_baseline_of_its_preset_and_names_it(otto_client, demo_pool, sent):
    page = otto_client.get("/experiments/matrix/new?preset=peers", follow=True).content.decode()
    assert "; the baseline is Least prefill work left</p>" in page
    order, ticked = (re.findall(f'name="{name}" value="([^"]*)"', page) for name in ("order", "arm"))
    assert order == PEERS
    assert ticked[0] == "round_robin"
    form = {"name": "Peers", "trace": "agentic-demo", "load_factor": "1", "pool": "demo", "seeds": "1"}
    form |= {"mode": "twin", "duration_s": "20", "order": order, "more_arms": "lpwl name=more"}
    form |= {"arm": [arm for arm in ticked if arm in order]}
    said = otto_client.post("/experiments/curl", form).content.decode()
    assert "= 13 runs in 1 cell; the baseline is Least prefill work left</p>" in said
    assert "http://testserver/api/v1/matrices" in said
    said = otto_client.post("/experiments/curl", form | {"arm": [], "order": []}).content.decode()
    assert ">1 arm × 1 seed = 1 run; the baseline is more</p>" in said
    otto_client.post("/experiments/new", form)
    assert Matrix.objects.get().body["arms"] == [*PEERS, "lpwl name=more"]


def test_the_form_of_an_experiment_keeps_the_order_of_the_one_that_it_repeats(otto_client, ci, demo_pool, sent):
    arms = ["lpwl", {"strategy": "lpwl", "name": "more", "fleet": {"replicas": 4}}, "round_robin"]
    number = ci.post("/experiments", body(arms=arms)).json()["id"]
    page = otto_client.get(f"/experiments/new?from={number}").content.decode()
    order = [html.unescape(line) for line in re.findall('name="order" value="([^"]*)"', page)]
    (typed,) = re.findall('name="more_arms"[^>]*>([^<]*)</textarea>', page)
    form = {name: str(value) for name, value in body().items() if name not in ("arms", "seeds")}
    form |= {"order": order, "seeds": "1"}
    form |= {"arm": ["round_robin", "lpwl"], "more_arms": html.unescape(typed)}
    assert otto_client.post("/experiments/new", form).status_code == 302
    assert [arm["name"] for arm in Experiment.objects.latest("pk").arms] == ["lpwl", "more", "round_robin"]


def test_the_form_of_a_cell_with_many_arms_is_that_of_a_matrix(otto_client, started):
    cell = started(arms=[f"lpwl name=arm{number}" for number in range(8)], loads=[2]).cells.get()
    page = otto_client.get(f"/experiments/new?from={cell.pk}").content.decode()
    assert "8 arms × 1 seed × 1 trace × 1 load = 8 runs in 1 cell; the baseline is arm0" in page
    assert 'name="load_factor" value="2" checked' in page
    assert "http://testserver/api/v1/matrices" in page


def test_a_link_with_the_body_of_a_matrix_opens_a_form_that_simulates_it(otto_client, demo_pool):
    link = {"body": json.dumps({"name": "m", "traces": ["agentic-demo"], "loads": [1], "arms": ["lpwl"]})}
    page = otto_client.get("/experiments/new", link).content.decode()
    assert 'value="m"' in page
    assert '<option value="twin" selected>' in page


def test_a_form_without_seeds_comes_back_without_seeds(otto_client, demo_pool):
    form = {"name": "x", "trace": "agentic-demo", "pool": "demo", "mode": "twin", "arm": "lpwl", "seeds": ""}
    answer = otto_client.post("/experiments/new", form)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert '<input type="text" name="seeds" value=""' in page
    assert 'name="seeds" value="1">' in page


def test_a_form_without_a_name_says_why_there_is_no_command(otto_client, demo_pool):
    page = otto_client.get("/experiments/new?preset=peers").content.decode()
    assert "<li>Name: too short; allowed: a length of at least 1</li>" in page


def test_the_form_says_at_once_that_there_are_too_many_runs(otto_client, demo_pool):
    form = {"name": "x", "trace": ["agentic-demo"], "pool": "demo", "duration_s": "20"}
    form |= {"load_factor": "1 2 3 4 5 6 7 8 9 10", "seeds": " ".join(map(str, range(1, 21)))}
    said = otto_client.post("/experiments/curl", form | {"more_arms": "a\nb\nc\nd"}).content.decode()
    assert ">Seeds: 1 traces × 10 loads × 4 arms × 20 seeds are 800 runs; allowed: at most 500</p>" in said


@pytest.mark.parametrize(
    ("typed", "field", "allowed"), [({"mode": "replay"}, "Mode", "twin"), ({"time_scale": "10"}, "Time scale", "1")]
)
def test_a_form_with_several_loads_is_simulated(otto_client, demo_pool, sent, typed, field, allowed):
    form = {"name": "x", "trace": "agentic-demo", "load_factor": ["0.5", "1"], "pool": "demo", "arm": "lpwl"}
    wrong = otto_client.post("/experiments/new", form | typed)
    assert wrong.status_code == 422
    assert f">{field}</a>: several traces, several load factors and more than 6 arms" in wrong.content.decode()
    assert f"which is simulated; allowed: {allowed}<" in wrong.content.decode()
    assert not sent


@pytest.mark.parametrize("name", ["design", "own-fleet", "bandwidths", "tiers", "disaggregated", "dwdp", "peers"])
def test_every_preset_is_offered_and_can_be_started(otto_client, ci, demo_pool, sent, name):
    Pool.objects.filter(pk=demo_pool.pk).update(replicas=8)
    Pool.objects.create(name="store", model="m", kind="sim-store", replicas=1)
    title, arms = presets("store")[name]
    page = otto_client.get(f"/experiments/matrix/new?preset={name}", follow=True).content.decode()
    assert title in page
    assert page.count("<dt>") == sum(not isinstance(arm, str) for arm in arms)
    (offered,) = (one for one in ci.get("/matrices/presets").json() if one["name"] == name)
    assert offered == {"name": name, "title": title, "arms": arms}
    answer = ci.post("/matrices", BODY | {"arms": offered["arms"], "loads": [1]})
    assert answer.status_code == 201, answer.content


def test_transfers_are_compared_over_the_connectors_that_the_fleet_has():
    def over():
        fleets = [arm["fleet"] for arm in presets(store_pool())["bandwidths"][1][1:]]
        return {(one["engine"]["kv"], one["engine"].get("kv_gb_per_s") or one["store"]["gb_per_s"]) for one in fleets}

    rates = (3, 9.7, 40)
    assert over() == {(kv, rate) for kv in ("nixl", "mooncake_p2p") for rate in rates}
    Pool.objects.create(name="cellar", model="m", kind="sim-store", replicas=1)
    assert over() == {(kv, rate) for kv in ("nixl", "mooncake_p2p", "mooncake_store") for rate in rates}


def test_cells_run_concurrently_and_a_replay_has_the_machine_to_itself(started, ci):
    def next_of(message: int) -> int | None:
        job = jobs.claim_next(Experiment, message)
        return job and job.pk

    matrix = started()
    first, second = (cell.pk for cell in matrix.cells.order_by("pk"))
    assert next_of(second) == first
    replay = ci.post("/experiments", body()).json()["id"]
    assert next_of(replay) == second  # the owner's oldest, whichever message arrives
    later = ci.post("/experiments", body(mode="twin", time_scale=1)).json()["id"]
    assert next_of(replay) is None
    assert next_of(later) is None  # waits for the earlier replay
    Experiment.objects.filter(pk__in=(first, second)).update(status="done")
    assert next_of(later) == replay
    assert next_of(later) is None


def test_the_status_of_a_matrix_is_that_of_its_cells():
    def of(*statuses):
        cells = [Experiment(status=status) for status in statuses]
        for cell in cells:
            cell.runs_total = cell.runs_done = 0
        return summary.state_of(cells).status

    assert of("done", "done") == "done"
    assert of("done", "queued") == of("running", "failed") == "running"
    assert of("queued", "queued") == "queued"
    assert of("done", "cancelled") == "cancelled"
    assert of("cancelled", "failed", "done") == "failed"


def test_marks_and_shades_say_how_far_an_arm_is_from_the_best():
    values = {"a": 100.0, "b": 104.0, "c": 130.0, "d": 300.0, "e": None}
    cell = Experiment(pk=1, trace="t", load_factor=1, arms=[{"name": name} for name in values])
    cell.summary = {
        "values": {"all": {"ttft_p90_ms": values, "goodput": {**values, "a": 0.0}}},
        "best_or_tied": {"all": {"ttft_p90_ms": ["a", "b"], "goodput": ["d"]}},
    }
    rows = {row.arm: row.cells[0] for row in summary.heat([cell, Experiment(arms=cell.arms)], "all", "ttft_p90_ms")}
    assert [(one.mark, one.shade) for one in rows.values()] == [("tied", 0), ("tied", 0), ("", 2), ("", 4), ("", 0)]
    rows = {row.arm: row for row in summary.heat([cell], "all", "goodput")}
    assert (rows["d"].cells[0].mark, rows["d"].cells[0].shade, rows["d"].best_or_tied) == ("best", 0, 1)
    assert rows["a"].cells[0].shade == 4


def test_a_matrix_counts_its_runs():
    assert MatrixIn.model_validate(BODY | {"seeds": [1, 2, 3]}).runs == 12
