"""Plans as jobs: over REST and on their pages, from the question to the draft of a fleet document."""

import json
import re
from datetime import timedelta
from html import escape
from typing import Any

import pytest
from django.utils import timezone

from controlplane.evidence.plan import planned, question, search
from controlplane.evidence.plan.question import busiest
from controlplane.evidence.planning import applied, display, running, services
from controlplane.evidence.planning.body import PlanIn
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews.tests.conftest import sent as sent  # a fixture
from controlplane.evidence.previews.tests.conftest import sim_pool
from controlplane.evidence.traces.generated import BUILT_IN
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import ApiCaller, api_caller
from controlplane.traffic.policies import services as policy_services
from fleet import subprocess
from fleet.calibration import services as calibrating
from fleet.jobs import RUNNING
from fleet.models import Calibration, Pool
from fleet.services import apply_fleet
from fleet.tests.calibration.rows import instance, measure_well

ASKED = {
    "trace": "agentic-demo", "gpus": {"h100_sxm": 5}, "slo": {"all": {"ttft_ms": 3000, "tpot_ms": 60}},
    "most_gpus": 2, "requests": 25,
}  # fmt: skip
FORM = {
    "trace": "agentic-demo", "model": "Llama-3.1-8B", "gpus.h100_sxm": "5", "slo.all.ttft_ms": "3,000",
    "slo.all.tpot_ms": "60", "most_gpus": "2", "requests": "25",
}  # fmt: skip


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, db: None, sent: list[Any]) -> None:
    """A small search in this process."""
    monkeypatch.setattr(question, "PARALLEL", (1,))
    for name, value in (("GO_ON", 2), ("FINAL", 2)):
        monkeypatch.setattr(search, name, value)
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take, **_: function(job, take))


@pytest.fixture
def pool() -> Pool:
    policy_services.ensure_default_policy()
    return sim_pool("demo")


def text(answer: Any) -> str:
    return str(answer.content.decode())


def test_a_plan_over_rest_has_the_result_of_the_command_and_is_computed_once(
    ci: ApiCaller, vera: Any, sent: Any
) -> None:
    viewer = api_caller(vera)
    assert viewer.post("/plans", ASKED).status_code == 403
    started = ci.post("/plans", ASKED)
    assert started.status_code == 202, started.content
    path = started.headers["Location"].removeprefix("/api/v1")
    assert (started.json()["status"], started.json()["result"], started.json()["total"]) == ("queued", None, 0)
    assert sent == [("planning.run", [started.json()["id"]], "control")]
    running.run_plan(started.json()["id"])
    done = viewer.get(path).json()
    assert (done["status"], done["cause"], done["trace"]["played"]) == ("done", "", 25)
    assert done["done"] == done["total"] > 2
    asked = PlanIn.model_validate(ASKED).question
    requests = busiest(BUILT_IN["agentic-demo"]().requests, 25)
    computed = planned.compute((asked, requests, "closed_loop"), lambda _: None)
    assert done["result"] == json.loads(json.dumps(computed))
    again = ci.post("/plans", ASKED)
    assert (again.status_code, again.json()["id"]) == (200, done["id"])
    assert [row["id"] for row in viewer.get("/plans").json()] == [done["id"]]
    assert AuditEntry.objects.get(action="plan.start").subject == f"plan {done['id']}"
    assert ci.post(f"{path}/cancel").status_code == 409


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"trace": "gone"}, "trace", "there is no trace gone"),
        ({"model": "GPT-9"}, "model", "allowed are"),
        ({"gpus": {"abacus": 1}}, "gpus.abacus", "allowed are"),
        ({"slo": {}}, "slo", "at least 1"),
        ({"slo": {"all": {}}}, "slo.all", "needs ttft_ms, tpot_ms or e2e_ms"),
        ({"policies": ["priced", "priced"]}, "policies", "each may occur once"),
        ({"most_gpus": 0}, "most_gpus", "at least 1"),
    ],
)
def test_an_invalid_question_is_refused_with_its_path_and_what_is_allowed(
    ci: ApiCaller, changes: Any, path: str, said: str
) -> None:
    answer = ci.post("/plans", {**ASKED, **changes})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["path"].startswith(path)
    assert said in error["message"]


def test_a_plan_is_started_watched_and_cancelled_on_its_pages(otto_client: Any, vera_client: Any) -> None:
    assert "No plans yet" in text(vera_client.get("/plans/"))
    assert "Planning requires the role operator" in text(vera_client.get("/plans/"))
    assert vera_client.post("/plans/", FORM).status_code == 403
    wrong = otto_client.post("/plans/", {**FORM, "slo.all.ttft_ms": "soon", "gpus.h100_sxm": "-1", "policies": "best"})
    assert wrong.status_code == 422
    for said in ("slo.all.ttft_ms", "gpus.h100_sxm", "policies.0", 'value="soon"', 'value="-1"'):
        assert said in text(wrong)
    page = otto_client.post("/plans/", FORM).headers["Location"]
    assert FleetPlan.objects.get().asked == PlanIn.model_validate(ASKED).model_dump(mode="json")
    assert "every 1s" in text(vera_client.get(f"{page}state"))
    assert "Cancel plan" not in text(vera_client.get(page))
    FleetPlan.objects.update(done=1_200, total=1_500)
    for part in ('<progress value="1200" max="1500"', "1,200 of 1,500 plays"):
        assert part in text(vera_client.get(page))
    begun = timezone.now() - timedelta(minutes=8)
    FleetPlan.objects.update(status=RUNNING, started_at=begun, heartbeat_at=timezone.now())
    assert "1,200 of 1,500 plays, about 2 min left" in text(vera_client.get(page))
    FleetPlan.objects.update(total=0)
    assert "finding the fleets to play" in text(vera_client.get(page))
    assert vera_client.post(f"{page}cancel").status_code == 403
    assert otto_client.post(f"{page}cancel").headers["Location"] == page
    shown = text(vera_client.get(page))
    assert "cancelled by otto" in shown
    assert "every 1s" not in shown
    assert vera_client.get("/plans/99/").status_code == 404


def test_a_row_becomes_the_draft_of_a_fleet_document(
    otto_client: Any, vera_client: Any, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = otto_client.post("/plans/", FORM).headers["Location"]
    made = FleetPlan.objects.get()
    running.run_plan(made.pk)
    made.refresh_from_db()
    rows = made.result["rows"]
    shown = text(vera_client.get(page))
    assert escape(planned.verdict(made.result)).replace("%", "\u00a0%") in shown
    assert shown.count('data-label="Breaks first"') == len(rows)
    assert "Expected error: TPOT" in shown
    assert "The simulation has changed since then" not in shown
    assert "asked: 90\u00a0%" in shown
    holding = sum(row["within"]["low"] >= 0.9 and row["if_slower"] >= 0.9 for row in rows)
    assert shown.count("tuning-point--front") == holding
    assert shown.count("tuning-point--short") == len(rows) - holding
    assert text(otto_client.get(page)).count(" selected>") == 1
    cheaper = {**rows[0], "dollars_per_hour": 0.5}
    marked: Any = {"rows": [cheaper, *rows], "holds": rows[-1], "undecided": cheaper}
    assert [fleet.badge for fleet in display._fleets(marked)] == ["undecided", *[""] * (len(rows) - 1), "holds"]
    monkeypatch.setattr(display, "source_sha256", lambda: "another")
    assert "The simulation has changed since then" in text(vera_client.get(page))

    assert vera_client.get(f"{page}draft?row=1&pool=demo").status_code == 403
    for query, said in (("row=99&pool=demo", "1 to"), ("row=1&pool=none", "allowed: demo")):
        assert said in text(otto_client.get(f"{page}draft?{query}", follow=True))
    draft = otto_client.get(f"{page}draft?row=1&pool=demo")
    assert f"model_profile: {made.asked['model']}" in text(draft)
    review = otto_client.post("/fleet/apply", {"step": "plan", "document": draft.context["document"]})
    assert review.status_code == 200
    assert "model_profile" in text(review)
    pool.refresh_from_db()
    assert pool.engine == {}, "nothing is applied before its review"
    assert applied.what_came_of(made).reason.startswith("No pool matches a row")
    apply_fleet(draft.context["document"], "otto")
    found = applied.what_came_of(made)
    assert (found.row, found.pool, found.reason) == (1, "demo", f"0 of {rows[0]['replicas']} instances are ready.")
    predicted = rows[0]["predicted"]
    assert sum(one["requests"] for one in predicted["classes"].values()) >= 25
    assert {*predicted["load"]} == {"requests_per_s", "prompt_tokens", "new_tokens", "output_tokens"}
    least, low, high, most = (
        predicted["classes"]["warm"]["ttft_p50_ms"][end] for end in ("least", "low", "high", "most")
    )
    assert least < low <= high < most


def test_a_search_that_is_too_large_fails_with_its_limit(ci: ApiCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "MOST_FLEETS", 1)
    number = ci.post("/plans", ASKED).json()["id"]
    running.run_plan(number)
    failed = ci.get(f"/plans/{number}").json()
    assert failed["status"] == "failed"
    assert re.match(r"\d+ fleets to play \(at most 1\)", failed["cause"])
    assert ci.post("/plans", ASKED).json()["id"] != number, "a failed one is computed again"


def test_a_search_that_takes_too_long_fails_and_says_what_to_change(
    ci: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LONGEST_S", 0.0)
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take, **_: beat())
    number = ci.post("/plans", ASKED).json()["id"]
    running.run_plan(number)
    failed = ci.get(f"/plans/{number}").json()
    assert failed["status"] == "failed"
    assert failed["cause"].endswith("0 of at most 0 plays: ask for fewer requests, GPUs or policies")


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool of vLLM with one measured instance."""
    monkeypatch.setattr(calibrating, "measure", measure_well)
    policy_services.ensure_default_policy()
    made: Pool = instance().pool
    assert calibrating.perform(calibrating.ask_for("chat-0", "ada").pk)
    row = Calibration.objects.get()
    Calibration.objects.update(limits={**row.limits, "kv_blocks": 16_384, "window": 262_144})
    return made


def test_a_plan_of_a_calibrated_pool_scales_its_own_engines(ci: ApiCaller, otto_client: Any, chat: Pool) -> None:
    number = ci.post("/plans", {**ASKED, "pool": "chat"}).json()["id"]
    running.run_plan(number)
    done = ci.get(f"/plans/{number}").json()
    assert done["status"] == "done", done["cause"]
    assert done["result"]["measured"]["about"].startswith("calibrated on chat-0")
    assert {str(row["engine"]) for row in done["result"]["rows"]} == {"{}"}
    made = FleetPlan.objects.get()
    assert "The engines are those of the pool chat, calibrated on chat-0" in text(otto_client.get(f"/plans/{number}/"))
    document, _ = services.draft(made, 1, "chat")
    apply_fleet(document, "otto")
    chat.refresh_from_db()
    assert (chat.replicas, chat.engine) == (done["result"]["rows"][0]["replicas"], {"max_num_seqs": 128})
    assert ci.get(f"/plans/{number}/actual").json()["row"] == 1
    Pool.objects.update(engine={"max_num_seqs": 2})
    assert ci.get(f"/plans/{number}/actual").json()["row"] == 0
    again = ci.post("/plans", {**ASKED, "pool": "chat", "seed": 2}).json()["id"]
    Pool.objects.update(kind="external", engine={})
    assert services.pools(made) == [], "Weir does not start its instances"
    Pool.objects.update(kind="vllm", engine={"max_num_seqs": 4})
    running.run_plan(again)
    assert "was measured or changed since the question" in ci.get(f"/plans/{again}").json()["cause"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pool": "none"}, "is not a pool"),
        ({"pool": "demo"}, "it is not calibrated"),
        ({"pool": "demo", "host_gb": [8]}, "has one GPU and its own host memory"),
    ],
)
def test_a_pool_that_cannot_be_planned_for_is_named(ci: ApiCaller, pool: Pool, changes: Any, said: str) -> None:
    answer = ci.post("/plans", {**ASKED, **changes})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "pool"
    assert said in answer.json()["errors"][0]["message"]
