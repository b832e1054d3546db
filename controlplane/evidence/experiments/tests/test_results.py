"""Results over REST and as files."""

import csv
import io
import zipfile
from xml.etree import ElementTree

import pytest

from controlplane.common import computing
from controlplane.doors.api.tests.test_tables import read_by_duckdb
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.results import assemble
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.output import exports
from controlplane.evidence.experiments.results.records import COLUMNS
from controlplane.evidence.experiments.tests.conftest import record, write_records

pytestmark = pytest.mark.django_db


def test_results_hold_figures_differences_and_distributions_of_each_arm(ci, ended):
    answer = ci.get(f"/experiments/{ended().pk}/results").json()
    assert answer["schema"] == 7
    assert [arm["name"] for arm in answer["arms"]] == ["round_robin", "adaptive_v1"]
    assert answer["arms"][0]["classes"]["all"]["ttft_p50_ms"] == 219.5
    assert answer["arms"][1]["classes"]["all"]["ttft_p50_ms"] == 199.5
    row = next(
        row
        for row in answer["differences"]
        if (row["arm"], row["metric"], row["class"]) == ("adaptive_v1", "ttft_p50_ms", "all")
    )
    assert (row["difference"], row["verdict"], row["n"]) == (-20, "better", 40)
    assert answer["best"]["all"]["ttft_p50_ms"] == "adaptive_v1"
    assert answer["ecdf"]["all"]["ttft"]["adaptive_v1"]["ms"][0] == 180
    assert "time scale 10" in answer["time"]
    assert answer["partial"] is False


def test_results_are_computed_again_when_a_run_has_more_records(ended):
    experiment = ended()
    before = results_of(experiment)
    run = Run.objects.get(experiment=experiment, arm="round_robin")
    write_records(run, [record(99, ttft_ms=1e6)])
    after = results_of(experiment)
    assert before["arms"][0]["classes"]["all"]["n"] + 1 == after["arms"][0]["classes"]["all"]["n"]


def test_figures_of_a_running_experiment_are_shown_without_differences(ended):
    results = results_of(ended(status="running"))
    assert results["partial"]
    assert results["differences"] == []
    assert results["arms"][0]["classes"]["all"]["n"] == 40


def test_the_csv_has_a_row_for_each_request(ci, ended):
    answer = ci.get(f"/experiments/{ended().pk}/results?format=csv")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert len(rows) == 80
    assert rows[0]["arm"] == "round_robin"
    assert float(rows[0]["ttft_ms"]) == 200.0


def test_the_parquet_file_has_the_columns_of_the_csv(ci, ended):
    answer = ci.get(f"/experiments/{ended().pk}/results?format=parquet")
    assert answer.headers["Content-Disposition"].endswith('.parquet"')
    assert answer.content[:4] == answer.content[-4:] == b"PAR1"
    assert all(name.encode() in answer.content for name in ("arm", "seed", "mode", *COLUMNS))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_large_export_made_outside_the_web_process_has_the_same_content(ci, ended, monkeypatch, form):
    path = f"/experiments/{ended().pk}/results?format={form}"
    small, beside = ci.get(path).content, []
    made = computing._beside
    monkeypatch.setattr(computing, "_beside", lambda *given: beside.append(given[0]) or made(*given))
    monkeypatch.setattr(exports, "LARGE", 0)
    assert ci.get(path).content == small
    assert beside == [exports.FORMS[form]]


def test_results_of_many_records_are_computed_outside_the_web_process_and_are_the_same(ci, ended, monkeypatch):
    path = f"/experiments/{ended(status='running').pk}/results"
    small, beside = ci.get(path).json(), []
    made = computing._beside
    monkeypatch.setattr(computing, "_beside", lambda *given: beside.append(given[0].__name__) or made(*given))
    monkeypatch.setattr(assemble, "LARGE", 0)
    assert ci.get(path).json() == small
    Experiment.objects.update(status="done")
    assert ci.get(path).json()["differences"]
    assert beside == ["figures", "figures", "compared"]


@pytest.mark.deploy
def test_duckdb_reads_the_parquet_file_as_the_csv(ci, ended):
    number = ended().pk
    types, rows = read_by_duckdb(ci.get(f"/experiments/{number}/results?format=parquet").content)
    text = ci.get(f"/experiments/{number}/results?format=csv").content.decode()
    assert list(types) == next(csv.reader([text.partition("\n")[0]]))
    assert (len(rows), rows[0]["arm"], rows[0]["seed"], rows[0]["ttft_ms"]) == (80, "round_robin", 1, 200.0)


def test_the_report_contains_its_pictures_or_has_them_beside_it(ci, ended):
    number = ended().pk
    text = ci.get(f"/experiments/{number}/report.md").content.decode()
    assert "![Difference from Round robin, class all](data:image/svg+xml;base64," in text
    files = zipfile.ZipFile(io.BytesIO(ci.get(f"/experiments/{number}/report.zip?baseline=adaptive_v1").content))
    assert "![Difference from Adaptive, class warm](forest-warm.svg)" in files.read("report.md").decode()
    assert ElementTree.fromstring(files.read("forest-all.svg")).tag.endswith("svg")
    assert ci.get(f"/experiments/{number}/report.zip?baseline=nobody").status_code == 422


def test_a_text_that_a_spreadsheet_would_execute_is_escaped(ci, ended):
    experiment = ended()
    write_records(Run.objects.filter(experiment=experiment)[0], [record(77, error="=cmd()", outcome="error")])
    answer = ci.get(f"/experiments/{experiment.pk}/results?format=csv")
    assert "'=cmd()" in answer.content.decode()


def test_the_report_names_the_verdicts_against_the_chosen_baseline(ci, ended):
    number = ended().pk
    text = ci.get(f"/experiments/{number}/report.md?baseline=adaptive_v1").content.decode()
    assert "# A vs B" in text
    assert "## Against Adaptive" in text
    assert "| Round robin | all | TTFT p50 | +20 ms (+10 %) |" in text
    assert ci.get(f"/experiments/{number}/report.md?baseline=nobody").status_code == 422


def test_junit_has_a_case_for_each_run_and_each_expectation(ci, ended):
    expect = [
        {"metric": "ttft_p90_ms", "class": "all", "arm": "adaptive_v1", "min": None, "max": 1000.0},
        {"metric": "ttft_p90_ms", "class": "all", "arm": "round_robin", "min": None, "max": 1.0},
    ]
    answer = ci.get(f"/experiments/{ended(expect=expect).pk}/junit.xml")
    suite = ElementTree.fromstring(answer.content)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "0")
    assert (
        suite.findall("testcase/failure")[0]
        .get("message")
        .startswith("fail: TTFT p90 of class all under Round robin is")
    )
    relative = {"metric": "ttft_p90_ms", "class": "all", "relative_to": "round_robin", "max_ratio": 0.915}
    experiment = ended(expect=[{**relative, "arm": "adaptive_v1"}])
    suite = ElementTree.fromstring(ci.get(f"/experiments/{experiment.pk}/junit.xml").content)
    assert (suite.get("failures"), suite.get("skipped"), suite.get("errors")) == ("0", "1", "0")
    assert suite.find("properties/property[@name='verdict']").get("value") == "inconclusive"
    assert "requests would decide it" in suite.find("testcase/skipped").get("message")


@pytest.mark.parametrize(
    ("status", "ratio", "verdict"),
    [("done", 1.0, "pass"), ("done", 0.5, "fail"), ("failed", 1.0, "none"), ("running", 1.0, "none")],
)
def test_the_experiment_has_one_verdict_once_it_has_succeeded(ci, ended, status, ratio, verdict):
    relative = {"metric": "ttft_p90_ms", "class": "all", "relative_to": "round_robin", "max_ratio": ratio}
    experiment = ended(status=status, expect=[relative], slo={"all": {"ttft_ms": 230}})
    results = ci.get(f"/experiments/{experiment.pk}/results").json()
    assert results["verdict"] == verdict
    assert results["arms"][0]["classes"]["all"]["within_slo"] == 0.775
    report = ci.get(f"/experiments/{experiment.pk}/report.md").content.decode()
    assert (f"**Verdict: {verdict}**" in report) == (status != "running")


def test_junit_waits_for_the_end_and_calls_a_failed_run_an_error(ci, ended):
    assert ci.get(f"/experiments/{ended(status='running').pk}/junit.xml").status_code == 409
    suite = ElementTree.fromstring(ci.get(f"/experiments/{ended(status='failed').pk}/junit.xml").content)
    assert suite.get("errors") == "2"


def test_the_list_pages_by_id(ci, ended):
    first, second = ended().pk, ended().pk
    assert [row["id"] for row in ci.get("/experiments").json()] == [second, first]
    assert [row["id"] for row in ci.get(f"/experiments?before={second}").json()] == [first]


def test_progress_counts_runs_and_requests(ci, ended):
    progress = ci.get(f"/experiments/{ended().pk}").json()["progress"]
    assert (progress["runs_done"], progress["runs"]) == (2, 2)
    assert (progress["requests_done"], progress["requests"], progress["eta_s"]) == (80, 80, None)


def test_an_unknown_experiment_is_a_problem(ci):
    for path in ("", "/results", "/report.md", "/junit.xml"):
        assert ci.get(f"/experiments/999{path}").status_code == 404
