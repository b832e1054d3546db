"""Predictions of a plan's row beside measurements, over REST and on the plan's page, from generated receipts."""

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.evidence.plan.actual import quantile_interval, share_interval
from controlplane.evidence.planning.body import PlanIn
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews.tests.conftest import sim_pool
from controlplane.testing import ApiCaller
from controlplane.traffic.policies import services as policy_services
from fleet.events import record_pool
from fleet.jobs import DONE
from fleet.models import Instance, Pool, PoolVersion, State
from fleet.snapshot import pool_spec
from fleet.spec.versions import record_version
from router.contract.redis import codec, redis_keys
from router.contract.redis.receipt import Receipt

ENGINE = {"gpu": "h100_sxm", "model_profile": "Llama-3.1-8B", "tp": 1}


def ends(low: float, high: float, error: float) -> dict[str, float]:
    return {"low": low, "high": high, "least": low * (1 - error), "most": high * (1 + error)}


WARM = {
    "requests": 200,
    "within_slo": {"low": 0.94, "high": 0.96, "least": 0.92, "most": 0.98},
    "ttft_p50_ms": ends(100, 102, 0.1),
    "tpot_p50_ms": ends(10, 10, 0.05),
}
ROW = {
    "dollars_per_hour": 10.0, "gpus": 2, "replicas": 2, "engine": ENGINE, "policy": "priced",
    "within": {"low": 0.94, "high": 0.96}, "if_slower": 0.92,
    "at_load": {"1": 0.95, "1.1": 0.95, "1.25": 0.9, "1.5": 0.5}, "breaks_first": "warm TTFT at ×1.5",
    "predicted": {
        "load": {"requests_per_s": 2.0, "prompt_tokens": 1000.0, "new_tokens": 400.0, "output_tokens": 50.0},
        "classes": {"warm": WARM},
    },
    "expected_error": {"tpot": 0.05, "e2e": 0.07, "ttft_mean": 0.1, "ttft_p99": 0.2}, "cautions": [],
}  # fmt: skip
ANSWER = {
    "simulated": True, "fingerprint": "f", "requests": 200, "fleets": 3, "too_small": 0, "left_out": [],
    "slo": {"all": {"ttft_ms": 150.0}}, "share": 0.9, "most_gpus": 2, "holds": ROW, "rows": [ROW],
}  # fmt: skip
ASKED = {"trace": "agentic-demo", "slo": {"all": {"ttft_ms": 150}}}


@pytest.fixture
def plan(db: None) -> FleetPlan:
    asked = PlanIn.model_validate(ASKED).model_dump(mode="json")
    ended = timezone.now() - timedelta(hours=1)
    return FleetPlan.objects.create(
        trace_name="agentic-demo", max_requests=200, asked=asked, key="k", source="s", status=DONE, result=ANSWER,
        ended_at=ended, actor="otto",
    )  # fmt: skip


@pytest.fixture
def pool(db: None) -> Pool:
    """A pool that equals the row and has not changed for half an hour."""
    policy_services.ensure_default_policy({"strategy.name": "priced"})
    made = sim_pool("demo", engine=ENGINE, created_at=timezone.now() - timedelta(minutes=30))
    for ordinal in range(2):
        Instance.objects.create(pool=made, name=f"demo-{ordinal}", ordinal=ordinal, state=State.READY)
    return made


@pytest.fixture
def receive(live_redis: redis.Redis) -> Callable[..., None]:
    """Receipts of the last 100 s: every twentieth is slow, all sessions have two requests."""

    now = time.time()

    def add(count: int = 200, ago: float | None = None, **changes: Any) -> None:
        draw = random.Random(1)
        for at in range(count):
            values = {
                "request_id": f"q{at}", "at": now - (ago or (count - at) / 2), "pool": "demo", "version": 1,
                "strategy": "priced", "request_class": "warm", "outcome": "ok", "session": f"s{at // 2}",
                "ttft_ms": 900.0 if at % 20 == 3 else draw.uniform(90, 110), "tpot_ms": draw.uniform(9, 11),
                "prompt_tokens": 1000, "cached_tokens": 600, "output_tokens": 50, "e2e_ms": 600.0,
            }  # fmt: skip
            live_redis.xadd(redis_keys.RECEIPTS, {"r": codec.encode(Receipt(**(values | changes)))})

    return add


def said(ci: ApiCaller, plan: FleetPlan) -> dict[str, Any]:
    answer = ci.get(f"/plans/{plan.pk}/actual")
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def verdicts(answer: dict[str, Any]) -> dict[str, str]:
    return {one["metric"]: one["verdict"] for one in answer["figures"]}


def test_measurements_are_shown_beside_predictions(
    ci: ApiCaller, vera_client: Any, plan: FleetPlan, pool: Pool, receive: Any
) -> None:
    receive()
    answer = said(ci, plan)
    assert (answer["row"], answer["pool"], answer["reason"], answer["requests"]) == (1, "demo", "", 200)
    assert all(one["alike"] for one in answer["load"])
    assert verdicts(answer) == dict.fromkeys(("within_slo", "ttft_p50_ms", "tpot_p50_ms"), "as predicted")
    within = answer["figures"][0]
    assert (within["class"], within["actual"], within["n"], within["sessions"]) == ("warm", 0.95, 200, 100)
    assert within["low"] < 0.95 < within["high"]
    page = vera_client.get(f"/plans/{plan.pk}/").content.decode()
    for text in ("Predicted against actual", "warm · Within the SLO", "as predicted", "Row 1, in the pool demo since"):
        assert text in page


@pytest.mark.parametrize(
    ("changes", "metric", "verdict"),
    [
        ({"ttft_ms": 140.0}, "ttft_p50_ms", "worse"),
        ({"ttft_ms": 40.0}, "ttft_p50_ms", "better"),
        ({"ttft_ms": 40.0}, "within_slo", "as predicted"),
        ({"ttft_ms": 200.0}, "within_slo", "worse"),
        ({"outcome": "refused", "ttft_ms": None}, "within_slo", "worse"),
        ({"session": "one"}, "within_slo", "too few"),
        ({"output_tokens": 500}, "tpot_p50_ms", "another load"),
        ({"cached_tokens": None, "predicted_cached": 100}, "ttft_p50_ms", "another load"),
    ],
)
def test_a_figure_is_judged_by_its_interval_and_the_expected_error(
    ci: ApiCaller, plan: FleetPlan, pool: Pool, receive: Any, changes: Any, metric: str, verdict: str
) -> None:
    receive(**changes)
    assert verdicts(said(ci, plan))[metric] == verdict


def test_another_load_is_reported_and_nothing_is_judged(
    ci: ApiCaller, plan: FleetPlan, pool: Pool, receive: Any
) -> None:
    receive(prompt_tokens=3000, cached_tokens=2600)
    answer = said(ci, plan)
    assert answer["reason"] == "The load is not as planned: 3,000 prompt tokens instead of 1,000."
    assert {*verdicts(answer).values()} == {"another load"}


def test_few_requests_and_classes_without_a_prediction_are_reported(
    ci: ApiCaller, plan: FleetPlan, pool: Pool, receive: Any
) -> None:
    receive(10)
    assert said(ci, plan)["reason"] == "Too few requests of each class."
    receive(30, request_class="heavy")
    assert said(ci, plan)["unplanned"] == {"heavy": 30}


def test_only_requests_since_the_last_change_count(ci: ApiCaller, plan: FleetPlan, pool: Pool, receive: Any) -> None:
    receive()
    receive(20, ago=40.2, version=7)
    assert said(ci, plan)["requests"] == 80, "another version decided until then"
    record_pool(pool, "note", "somebody looked")
    assert said(ci, plan)["requests"] == 80
    record_pool(pool, "scale", "scaled from 3 to 2")
    answer = said(ci, plan)
    assert (answer["requests"], answer["reason"]) == (0, "The routers keep no receipt since.")


def test_a_pool_that_differs_from_its_row_says_what_is_missing(
    ci: ApiCaller, plan: FleetPlan, pool: Pool, receive: Any
) -> None:
    receive()
    before = pool_spec(pool)
    Pool.objects.update(replicas=3)
    assert said(ci, plan)["reason"] == "demo has the engines of row 1; it needs 2 instances instead of 3."
    Pool.objects.update(replicas=2, engine={**ENGINE, "max_num_seqs": 8})
    pool.refresh_from_db()
    record_version(pool, before, pool_spec(pool), "otto", "")
    PoolVersion.objects.filter(number=2).update(config={"model": "m", "kind": "sim", "engine": {"forgotten": 1}})
    assert said(ci, plan)["reason"].startswith("The fleet has changed: demo had the engines of row 1 until version 2")
    Pool.objects.update(engine=ENGINE)
    pool.refresh_from_db()
    record_version(pool, None, pool_spec(pool), "otto", "")
    policy_services.ensure_default_policy()
    Instance.objects.filter(ordinal=1).update(state=State.FAILED)
    assert said(ci, plan)["reason"] == "1 of 2 instances are ready."
    FleetPlan.objects.update(result={**ANSWER, "rows": [{**ROW, "predicted": {}}]})
    assert "plan again" in said(ci, plan)["reason"]
    FleetPlan.objects.update(result={**ANSWER, "rows": [{**ROW, "policy": "lpwl"}]})
    assert said(ci, plan)["reason"].endswith("it needs the strategy lpwl published instead of priced.")
    FleetPlan.objects.update(result={**ANSWER, "rows": [{**ROW, "engine": {**ENGINE, "tp": 2}}]})
    assert said(ci, plan)["reason"].startswith("No pool matches a row")
    FleetPlan.objects.update(result=None, status="failed")
    assert said(ci, plan)["reason"] == "The plan has no rows; it is failed."
    assert ci.get("/plans/99/actual").status_code == 404


def test_an_interval_is_wider_where_sessions_differ() -> None:
    held = [True] * 50 + [False] * 50
    alone, alike = ([f"{at // size}" for at in range(100)] for size in (1, 10))
    low, high = share_interval(held, alone)
    assert low < 0.5 < high < 0.61
    assert share_interval(held, alike)[1] > high + 0.1
    value, least, most = quantile_interval([*map(float, range(100))], alone, 0.9)
    assert value == pytest.approx(89.1)
    assert least < value < most
    assert share_interval([True], ["s"])[0] < 0.5
