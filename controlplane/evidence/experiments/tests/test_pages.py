"""The pages show what the API returns, to every user with a role."""

import csv
import io
import json
import re

import pytest

from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.output import display, near
from controlplane.evidence.experiments.results.output.effects import arm_title
from controlplane.evidence.experiments.tests.conftest import body, record, write_records
from controlplane.evidence.traces.summary import HEAVY_NEW_TOKENS
from router.policy.schema.document import default

pytestmark = pytest.mark.django_db


def test_an_empty_list_explains_itself_and_offers_a_button_and_a_curl_command(otto_client, demo_pool):
    page = otto_client.get("/experiments/").content.decode()
    assert "No experiments yet" in page
    assert 'href="/experiments/new"' in page
    assert "curl -sS http://testserver/api/v1/experiments" in page


def test_the_list_shows_status_progress_and_who_started_it(vera_client, ended):
    ended()
    page = vera_client.get("/experiments/").content.decode()
    assert "status--done" in page
    assert "2/2 runs" in page
    assert "80/80 requests" in page
    assert "Round robin, Adaptive" in page


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("q=a+vs", True),
        ("q=otto", True),
        ("q=nothing", False),
        ("status=failed", False),
        ("mode=replay&status=done", True),
    ],
)
def test_the_list_is_filtered_by_the_url(vera_client, ended, query, shown):
    ended()
    page = vera_client.get(f"/experiments/?{query}").content.decode()
    assert (">A vs B<" in page) == shown
    assert ("No experiment matches" in page) != shown


def test_failed_and_cancelled_runs_are_not_counted_and_unsent_requests_are_explained(vera_client, ended):
    experiment = ended(status="cancelled")
    assert "0/2 runs" in vera_client.get(f"/experiments/{experiment.pk}/").content.decode()
    experiment = ended()
    experiment.runs.update(total=42)
    assert "4 not sent: their sessions" in vera_client.get(f"/experiments/{experiment.pk}/").content.decode()


def test_the_csv_of_the_comparison_has_the_cells_of_the_page(vera_client, ci, ended):
    experiment = ended(slo={"all": {"ttft_ms": 220}})
    page = cells(vera_client.get(f"/experiments/{experiment.pk}/?class=warm&baseline=adaptive_v1").content.decode())
    text = ci.get(f"/experiments/{experiment.pk}/comparison.csv?class=warm&baseline=adaptive_v1").content.decode()
    rows = {(row["metric"], row["arm"]): row for row in csv.DictReader(io.StringIO(text))}
    assert {key: rows[key]["value"] for key in page} == page
    worse = rows["ttft_p50_ms", "round_robin"]
    assert (worse["difference"], worse["verdict"], worse["best_or_tied"]) == ("20.0", "worse", "False")
    assert ci.get(f"/experiments/{experiment.pk}/comparison.csv?baseline=nobody").status_code == 422


def cells(page: str) -> dict[tuple[str, str], str]:
    found = re.findall(r'data-metric="([^"]+)" data-arm="([^"]+)" data-value="([^"]*)"', page)
    return {(metric, arm): value for metric, arm, value in found}


@pytest.mark.parametrize("request_class", ["all", "warm", "heavy"])
def test_the_page_shows_the_levels_of_the_api(otto_client, ci, ended, request_class):
    experiment = ended()
    api = ci.get(f"/experiments/{experiment.pk}/results").json()
    shown = cells(otto_client.get(f"/experiments/{experiment.pk}/?class={request_class}").content.decode())
    levels = {(metric, arm["name"]): v for arm in api["arms"] for metric, v in arm["classes"][request_class].items()}
    rows = [row for row in api["differences"] if row["class"] == request_class]
    levels |= {(row["metric"], row["baseline"]): row["reference"] for row in rows}
    found = {key: "" if levels[key] is None else repr(levels[key]) for key in shown if key in levels}
    assert found == {key: shown[key] for key in found}
    assert len(found) >= 26


def test_heavy_and_cached_are_shown_with_their_meaning(otto_client, ended):
    """Policies have another threshold, and a decoder that holds no prefix reports what it received as cached."""
    experiment = ended()
    heavy, every = (
        otto_client.get(f"/experiments/{experiment.pk}/?class={name}").content.decode() for name in ("heavy", "all")
    )
    assert HEAVY_NEW_TOKENS == 20_000 != default()["classes"]["heavy_new_tokens"]
    assert "Class heavy (by an unbounded cache: heavy from 20,000 new tokens)" in heavy
    for page in (heavy, every):
        assert "Cached or transferred share of prompt tokens" in page
        assert not re.search(r">\s*Cached share", page)


@pytest.mark.parametrize("baseline", ["round_robin", "adaptive_v1"])
def test_a_shown_difference_has_the_sign_of_the_levels_beside_it(otto_client, ended, baseline):
    """The faster arm was not sent the last requests, left some unanswered, and was slower on the requests that both
    were sent."""
    experiment = ended(n=60, slo={"all": {"ttft_ms": 220}})
    slow = [record(100 + i, ttft_ms=5_000.0 + i, e2e_ms=9_000.0 + i, trace_class="heavy") for i in range(30)]
    first, second = experiment.runs.order_by("ordinal")
    write_records(first, slow)
    unanswered = {"outcome": "error", "ttft_ms": None, "tpot_ms": None, "e2e_ms": None}
    write_records(
        second, [record(100 + i, ttft_ms=5_100.0 + i, e2e_ms=9_500.0 + i, trace_class="heavy") for i in range(25)]
    )
    write_records(second, [record(125, trace_class="heavy", **unanswered)])
    compared = 0
    for request_class in ("all", "warm", "heavy"):
        page = otto_client.get(f"/experiments/{experiment.pk}/?class={request_class}&baseline={baseline}")
        rows = shown_rows(page.content.decode())
        levels = {(metric, arm): value for metric, arm, value, _ in rows}
        for metric, arm, value, difference in rows:
            base = levels[metric, baseline]
            if difference and value and base:
                assert sign(float(value) - float(base)) == sign(amount(difference)), (metric, arm, value, difference)
                compared += 1
        assert "(4 left out)" in page.content.decode() or request_class == "warm"
    assert compared > 30


def shown_rows(page: str) -> list[tuple[str, str, str, str]]:
    """(metric, arm, level, shown difference)."""
    cell = r'data-metric="([^"]+)" data-arm="([^"]+)" data-value="([^"]*)">(.*?)</td>'
    return [
        (metric, arm, value, found[1] if (found := re.search(r'<br><span class="small number">([^<]+)<', html)) else "")
        for metric, arm, value, html in re.findall(cell, page, re.S)
    ]


def amount(text: str) -> float:
    return float(text.split(maxsplit=1)[0].replace("−", "-").replace(",", ""))


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


@pytest.mark.parametrize(("n", "verdict"), [(30, "worse"), (5, "too few requests")])
def test_a_difference_whose_quantile_falls_on_unanswered_requests_says_so(otto_client, ci, ended, n, verdict):
    experiment = ended(n=n // 3)
    first, second = experiment.runs.order_by("ordinal")
    write_records(first, [record(100 + i) for i in range(n)])
    unanswered = {"outcome": "error", "ttft_ms": None, "tpot_ms": None, "e2e_ms": None}
    write_records(second, [record(100 + i, **unanswered) for i in range(n)])
    page = otto_client.get(f"/experiments/{experiment.pk}/?baseline=round_robin").content.decode()
    shown = {(metric, arm): difference for metric, arm, _, difference in shown_rows(page)}
    assert shown["ttft_p90_ms", "adaptive_v1"] == "falls on unanswered requests"
    text = ci.get(f"/experiments/{experiment.pk}/report.md?baseline=round_robin").content.decode()
    row = f"| Adaptive | all | TTFT p90 | falls on unanswered requests | ∞ to ∞ | {n + n // 3} | {verdict} |"
    assert row in text


def test_the_difference_from_the_chosen_baseline_is_shown_with_its_verdict(otto_client, ended):
    experiment = ended()
    page = otto_client.get(f"/experiments/{experiment.pk}/?baseline=round_robin").content.decode()
    assert "● better" in page
    assert "−20" in page
    other = otto_client.get(f"/experiments/{experiment.pk}/?baseline=adaptive_v1").content.decode()
    assert "■ worse" in other
    assert "Adaptive is better than Round robin on TTFT p50" in page
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="forest"' in page


def test_warnings_are_shown_beside_their_comparison(otto_client, ended):
    experiment = ended()
    experiment.runs.filter(arm="round_robin").update(warnings=["the machine's CPU was 100 % busy during the run"])
    page = otto_client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "1 caveat<" in page
    assert "round_robin: the machine&#x27;s CPU was 100 % busy" in page


def test_parameters_that_differ_are_shown_first(otto_client, ended):
    page = otto_client.get(f"/experiments/{ended().pk}/").content.decode()
    assert "Parameters that differ between the arms" in page
    assert "strategy.name" in page


def test_a_ratio_is_shown_without_a_unit():
    settings = {each.path: each for each in display.settings_of([default("cache_aware")])}
    weight = settings["strategy.hit_weight"]
    assert (weight.values, weight.unit) == (("1",), "")


def test_a_failed_run_shows_its_cause_step_and_log_and_its_figures_as_partial(vera_client, ended):
    experiment = ended(status="failed", cause="adaptive_v1, seed 1: worker lost: no heartbeat for 16 s")
    experiment.runs.filter(arm="adaptive_v1").update(cause="worker lost", step="replaying", log="last words")
    page = vera_client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "worker lost: no heartbeat for 16 s" in page
    assert "step: replaying" in page
    assert "last words" in page
    assert "partial" in page
    assert results_of(experiment)["partial"]


def test_the_form_starts_the_same_experiment_as_the_api(otto_client, demo_pool, sent):
    form = {"name": "A vs B", "trace": "agentic-demo", "pool": "demo", "mode": "replay", "duration_s": "60"}
    form |= {"time_scale": "10", "load_factor": "1", "seeds": "1, 2", "pacing": "auto", "arm": ["round_robin", "lpwl"]}
    form["more_arms"] = '{"name": "T10k", "strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": 10000}}'
    answer = otto_client.post("/experiments/new", form)
    made = Experiment.objects.get()
    assert answer.headers["Location"] == f"/experiments/{made.pk}/"
    assert [arm["name"] for arm in made.arms] == ["round_robin", "lpwl", "T10k"]
    assert made.seeds == [1, 2]
    assert len(sent) == 1


def test_an_invalid_form_keeps_what_was_typed_and_reports_each_field(otto_client, demo_pool, sent):
    form = {"name": "My question", "trace": "agentic-demo", "pool": "demo", "time_scale": "fast", "seeds": "1"}
    answer = otto_client.post("/experiments/new", {**form, "arm": ["round_robin"], "more_arms": "nothing@3"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert 'value="My question"' in page
    assert 'value="fast"' in page
    assert "allowed is a number from 0.1 to 100" in page
    assert "nothing@3" in page
    assert not sent


def test_a_new_form_folds_optional_fields_and_shows_those_that_a_link_has_set(otto_client, demo_pool):
    folded, shown = '<details class="panel fold" id="more">', '<details class="panel fold" id="more" open>'
    assert folded in otto_client.get("/experiments/new").content.decode()
    given = {"name": "Twice", "trace": "agentic-demo", "question": "Why?", "arms": ["lpwl name=plain"]}
    page = otto_client.get("/experiments/new", {"body": json.dumps(given)}).content.decode()
    assert shown in page
    assert folded not in page


def test_typed_arms_are_described_with_the_titles_of_the_policy_form(otto_client, demo_pool):
    arm = "adaptive_v1 classes.heavy_new_tokens=10000 fleet.replicas=4 fleet.kv=nixl name=T10k"
    given = {"name": "Earlier", "trace": "agentic-demo", "arms": [arm]}
    page = otto_client.get("/experiments/new", {"body": json.dumps(given)}).content.decode()
    words = "Adaptive; Heavy threshold = 10,000, KV transfer = nixl, instances = 4"
    assert f"<dt>T10k</dt><dd>{words}</dd>" in page


def test_a_viewer_sees_the_form_disabled_and_cannot_send_it(vera_client, otto, demo_pool, sent):
    page = vera_client.get("/experiments/new").content.decode()
    assert "requires the role operator; ask otto" in page
    assert vera_client.post("/experiments/new", {"name": "x"}).status_code == 403
    assert not sent


def test_copy_as_curl_has_the_body_of_the_form(otto_client, demo_pool):
    import shlex

    form = {"name": "it's A", "trace": "agentic-demo", "pool": "demo", "time_scale": "10", "seeds": "1 2"}
    page = otto_client.post("/experiments/curl", {**form, "arm": ["round_robin"]}).content.decode()
    command = re.search(r"<code>(.*?)</code>", page, re.S)
    assert command is not None
    import html

    words = shlex.split(html.unescape(command[1]))
    sent_body = json.loads(words[words.index("-d") + 1])
    assert sent_body["name"] == "it's A"
    assert sent_body["seeds"] == [1, 2]
    assert sent_body["time_scale"] == 10


def test_cancelling_from_the_page_requires_an_operator(vera_client, otto_client, ci, demo_pool, sent):
    number = ci.post("/experiments", body()).json()["id"]
    assert vera_client.post(f"/experiments/{number}/cancel").status_code == 403
    assert otto_client.post(f"/experiments/{number}/cancel").status_code == 302
    assert Experiment.objects.get().cancelled_by == "otto"


def test_the_refreshed_part_reloads_the_page_when_the_experiment_has_ended(vera_client, ended):
    answer = vera_client.get(f"/experiments/{ended().pk}/progress")
    assert answer.headers["HX-Refresh"] == "true"


def test_running_again_starts_from_the_same_fields(otto_client, ci, demo_pool, sent):
    number = ci.post("/experiments", body(name="Again please", duration_s=77)).json()["id"]
    page = otto_client.get(f"/experiments/new?from={number}").content.decode()
    assert 'value="Again please"' in page
    assert 'value="77"' in page


def test_an_unknown_experiment_is_not_found(vera_client):
    assert vera_client.get("/experiments/999/").status_code == 404


def test_a_point_of_a_chart_opens_the_requests_around_it_slowest_first(vera_client, ended):
    experiment = ended()
    arm = experiment.settled_arms[1].name
    page = vera_client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert f'data-behind="/experiments/{experiment.pk}/requests"' in page
    shown = vera_client.get(f"/experiments/{experiment.pk}/requests", {"arm": arm, "latency": "ttft", "ms": "120"})
    assert f"Requests of {arm_title(arm)}" in shown.content.decode()
    slow = [row.ms for row in shown.context["rows"]]
    assert slow == sorted(slow, reverse=True)
    assert len(slow) == near.NEAREST
    every = [one.ttft_ms for run in experiment.runs.filter(arm=arm) for one in records.read(run.records_path)]
    assert sorted(slow) == sorted(sorted(every, key=lambda ms: abs(ms - 120))[: near.NEAREST])


@pytest.mark.parametrize("query", ["", "ms=nan&arm=none&class=huge&latency=x", "ms=-1", "ms=1e400"])
def test_without_a_choice_the_page_lists_the_slowest_requests_of_the_first_arm(vera_client, ended, query):
    experiment = ended()
    context = vera_client.get(f"/experiments/{experiment.pk}/requests?{query}").context
    assert (context["arm"], context["point"]) == (
        experiment.settled_arms[0].name,
        near.LatencyPoint("all", "ttft", None),
    )
    assert context["rows"][0].ms == max(
        one.ttft_ms for run in experiment.runs.filter(arm=context["arm"]) for one in records.read(run.records_path)
    )
