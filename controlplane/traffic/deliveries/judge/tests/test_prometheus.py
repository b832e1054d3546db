"""A guard asks Prometheus for one number. A query that cannot be judged neither passes nor ends a step."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from controlplane.tests.prometheus import DebiansPrometheus
from controlplane.traffic.deliveries import prometheus
from controlplane.traffic.deliveries.judge import step
from controlplane.traffic.deliveries.judge.prometheus import QueryResult, answer, expanded, judge
from controlplane.traffic.deliveries.judge.step import judge as look_at
from controlplane.traffic.deliveries.judge.tests.test_step import TENTH, Fleet, later, started
from controlplane.traffic.deliveries.judge.tests.traffic import cells
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import PrometheusGuard
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.tests.conftest import FULL, proposed
from controlplane.traffic.policies.models import Policy
from fleet.models import Pool
from router.contract.values.problem import InvalidInput
from router.tests.ports import free_port

TTFT = {"metric": "ttft", "classes": ["warm"], "worse": 0.5, "fine": 0.6}
QUERY = 'sum(rate(errors_total{pool="$pool"}[$step_ss]))'
GUARD: dict[str, Any] = {"metric": "prometheus", "query": QUERY, "limit": 0.02}


def answered(*queries: str) -> list[QueryResult]:
    (found,) = prometheus.ask({("demo", query): query for query in queries})
    return list(found.values())


def of(kind: str, result: Any) -> Any:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def vector(*values: str) -> Any:
    return of("vector", [{"metric": {}, "value": [1.0, value]} for value in values])


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (vector("0.25"), QueryResult(0.25)),
        (of("scalar", [1.0, "3"]), QueryResult(3.0)),
        (vector("+Inf"), QueryResult(float("inf"))),
        (vector("NaN"), QueryResult()),
        (vector(), QueryResult()),
        (vector("1", "2"), QueryResult(error="the query answers 2 series: one number is judged, sum or max them")),
        (of("string", [1.0, "x"]), QueryResult(error="the query answers a string: one number is judged")),
        (of("vector", [{}]), QueryResult(error="it answered None for a number")),
        ({"status": "error"}, QueryResult(error="it answered {'status': 'error'}")),
        ([], QueryResult(error="it answered []")),
    ],
)  # fmt: skip
def test_one_number_is_accepted_and_everything_else_counts_as_no_data_or_an_error(
    body: Any, found: QueryResult
) -> None:
    assert answer(body) == found


def test_values_cannot_escape_from_their_label() -> None:
    values = {"pool": 'a"} or vector(1) #\\', "policy": "p", "candidate": "7", "step_s": "90"}
    query = '{pool="$pool",v="$candidate",p="${policy}"}[$step_ss] $1 $other'
    assert expanded(query, values) == '{pool="a\\"} or vector(1) #\\\\",v="7",p="p"}[90s] $1 $other'


def guard(fail_if: Any = "above", for_looks: int = 2, does: Any = "abort") -> PrometheusGuard:
    return PrometheusGuard("prometheus", "up", 0.5, fail_if, for_looks, does)


@pytest.mark.parametrize(
    ("answers", "verdicts"),
    [
        ([QueryResult(0.4)], ["fine"]),
        ([QueryResult(0.6)] * 3, ["inconclusive", "fail", "fail"]),
        ([QueryResult(0.6), QueryResult(0.4), QueryResult(0.6)], ["inconclusive", "fine", "inconclusive"]),
        ([QueryResult()] * 2, ["no_data", "no_data"]),
        ([QueryResult(error="away")] * 2, ["inconclusive", "error"]),
        ([QueryResult(0.6), QueryResult(error="away"), QueryResult(0.6)], ["inconclusive"] * 3),
    ],
)
def test_a_failure_and_an_error_count_only_if_they_last(answers: list[QueryResult], verdicts: list[str]) -> None:
    before, found = None, []
    for each in answers:
        finding, before = judge(guard(), each, before)
        assert finding.needed
        found.append(finding.verdict)
    assert found == verdicts


def test_a_prometheus_guard_may_fail_below_its_limit_and_may_pause() -> None:
    finding, _ = judge(guard("below", 1, "pause"), QueryResult(0.4), None)
    assert (finding.verdict, finding.effect) == ("fail", "pause")
    assert judge(guard("below", 1), QueryResult(0.5), None)[0].verdict == "fine"


def test_a_plan_with_a_query_is_parsed_stored_and_refused_where_it_is_wrong() -> None:
    steps = [TENTH, FULL]
    made = parse_plan({"steps": steps, "guards": [TTFT, GUARD]}, pools=["demo"])
    assert made.guards[1] == PrometheusGuard("prometheus", QUERY, 0.02, "above", 2, "abort")
    assert stored_plan.read(made.canonical) == made
    for changes, path in (
        ({"query": ""}, "query"),
        ({"query": "x" * 2_001}, "query"),
        ({"query": 'up{a="$pod"}'}, "query"),
        ({"limit": "much"}, "limit"),
        ({"fail_if": "equal"}, "fail_if"),
        ({"for_looks": 0}, "for_looks"),
        ({"url": "http://169.254.169.254/"}, "url"),
    ):
        with pytest.raises(InvalidInput) as refused:
            parse_plan({"steps": steps, "guards": [TTFT, {**GUARD, **changes}]}, pools=["demo"])
        assert [problem.path for problem in refused.value.problems] == [f"guards[1].{path}"]
    for guards in ([TTFT, GUARD, GUARD], [TTFT, *({**GUARD, "query": f"up + {n}"} for n in range(11))]):
        with pytest.raises(InvalidInput):
            parse_plan({"steps": steps, "guards": guards}, pools=["demo"])


class Prometheus(HTTPServer):
    """Gives every query the same answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body = 200, json.dumps(vector("0.01"))
        self.asked: list[str] = []
        self.tokens: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Prometheus)
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        server.asked += form["query"]
        server.tokens.append(self.headers["authorization"])
        self.send_response(server.status)
        self.end_headers()
        self.wfile.write(server.body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(settings: Any) -> Iterator[Prometheus]:
    with Prometheus() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        settings.PROMETHEUS_URL, settings.PROMETHEUS_TOKEN = f"http://127.0.0.1:{made.server_port}", "secret"
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow these tests a long time between looks."""
    monkeypatch.setattr(step, "AWAY_S", 1e9)


def canary_of(policy: Policy, fleet: Fleet) -> Delivery:
    return started(policy, TENTH, FULL, fleet=fleet, guards=[TTFT, GUARD])


def looked(delivery: Delivery, fleet: Fleet, *seconds: float) -> Delivery:
    for second in seconds:
        fleet.write(delivery, cells(12_000))
        delivery = look_at(delivery, later(delivery, second))
    return delivery


def test_a_number_beyond_the_limit_ends_the_delivery(
    policy: Policy,
    pool: Pool,
    fleet: Fleet,
    server: Prometheus,
) -> None:
    delivery = canary_of(policy, fleet)
    assert server.asked[0] == 'sum(rate(errors_total{pool="demo"}[1s]))'  # once before the plan was saved
    server.body = json.dumps(vector("0.5"))
    delivery = looked(delivery, fleet, 20)
    assert (delivery.state, server.asked[-1]) == (State.STEP, 'sum(rate(errors_total{pool="demo"}[20s]))')
    assert set(server.tokens) == {"Bearer secret"}
    delivery = looked(delivery, fleet, 25)
    assert delivery.state == State.ABORTED
    assert "is 0.5, fails above 0.02, for 2 of 2 looks" in delivery.why


def test_without_data_nothing_passes_and_with_a_good_number_it_does(
    policy: Policy,
    pool: Pool,
    fleet: Fleet,
    server: Prometheus,
) -> None:
    server.body = json.dumps(vector())
    delivery = looked(canary_of(policy, fleet), fleet, 61, 66, 71)
    assert (delivery.state, delivery.step) == (State.STEP, 0)
    server.body = json.dumps(vector("0.01"))
    assert looked(delivery, fleet, 76).state == State.BAKING


def test_an_unreachable_prometheus_causes_a_hold_until_it_is_back(
    policy: Policy,
    pool: Pool,
    fleet: Fleet,
    server: Prometheus,
) -> None:
    delivery = canary_of(policy, fleet)
    server.status, server.body = 503, "away"
    delivery = looked(delivery, fleet, 61, 66)
    assert delivery.state == State.HOLDING
    assert "HTTP 503" in delivery.why
    assert looked(delivery, fleet, 71).state == State.HOLDING
    server.status, server.body = 200, json.dumps(vector())  # live decides everything, so missing data is no error
    assert looked(delivery, fleet, 76, 81, 86).state == State.STEP


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (400, '{"status": "error", "error": "parse error: unexpected end"}', "HTTP 400: parse error"),
        (200, json.dumps(vector("1", "2")), "2 series"),
        (200, "<html>", "it answered None"),
        (200, "x" * 300_000, "more than"),
    ],
)
def test_a_query_that_cannot_be_judged_is_refused_before_it_is_saved(
    policy: Policy, pool: Pool, server: Prometheus, status: int, body: str, why: str
) -> None:
    server.status, server.body = status, body
    with pytest.raises(InvalidInput) as refused:
        proposed(policy, TENTH, FULL, guards=[TTFT, GUARD])
    (problem,) = refused.value.problems
    assert problem.path == "plan.guards[1].query"
    assert why in problem.message
    assert not Delivery.objects.exists()


def test_nobody_is_queried_if_no_address_is_set(policy: Policy, pool: Pool, settings: Any) -> None:
    settings.PROMETHEUS_URL = ""
    with pytest.raises(InvalidInput, match="Prometheus") as refused:
        proposed(policy, TENTH, FULL, guards=[TTFT, GUARD])
    assert refused.value.problems[0].message == "WEIR_PROMETHEUS_URL is not set"
    settings.PROMETHEUS_URL = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(InvalidInput):
        proposed(policy, TENTH, FULL, guards=[TTFT, GUARD])


def test_many_queries_of_one_delivery_wait_for_those_of_others_and_nobody_waits_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[str] = []

    async def hangs(query: str) -> QueryResult:
        began.append(query)
        await asyncio.sleep(0 if query == "small" else 60)
        return QueryResult(1.0)

    monkeypatch.setattr(prometheus, "_query", hangs)
    monkeypatch.setattr(prometheus, "LONGEST_S", 0.05)
    many = {("demo", f"up + {n}"): f"up + {n}" for n in range(2 * prometheus.AT_ONCE)}
    found = prometheus.ask(many, {("demo", "small"): "small"})
    assert began[:2] == ["up + 0", "small"]
    assert len(began) == prometheus.AT_ONCE + 1  # the limit of concurrent queries, and the slot of the answered one
    assert found[1] == {("demo", "small"): QueryResult(1.0)}
    assert {result.error for result in found[0].values()} == {
        "no answer within 0.05 s to all queries of open deliveries"
    }


def test_a_delivery_without_queries_is_judged_before_any_answer_is_awaited(
    policy: Policy, pool: Pool, fleet: Fleet, server: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = canary_of(policy, fleet)
    monkeypatch.setattr(step.selectors, "open_deliveries", lambda: [asking, asking])
    queries, order = step._queries, []
    monkeypatch.setattr(step, "_queries", lambda *given: {} if len(order) else order.append("asks") or queries(*given))
    monkeypatch.setattr(step, "_finish", lambda begun, now, answers: order.append("judged" if answers else "at once"))
    step.step(later(asking, 5))
    assert order == ["asks", "at once", "judged"]


class Debians(DebiansPrometheus):
    """A Prometheus that scrapes a page with the share of errors."""

    def __init__(self, folder: Path) -> None:
        self.page = HTTPServer(("127.0.0.1", 0), Page)
        self.page.share = 0.01  # type: ignore[attr-defined]
        threading.Thread(target=self.page.serve_forever, args=(0.01,), daemon=True).start()
        scraped = [{"job_name": "demo", "static_configs": [{"targets": [f"127.0.0.1:{self.page.server_port}"]}]}]
        config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": scraped}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        super().__init__(folder)

    def until(self, share: float) -> None:
        """Set the share and wait until the query returns it."""
        self.page.share = share  # type: ignore[attr-defined]
        end = time.monotonic() + 60
        while answered("sum(errors_share)") != [QueryResult(share)]:
            assert time.monotonic() < end
            time.sleep(0.1)


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f'errors_share{{pool="demo"}} {self.server.share}\n'.encode())  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def debians(tmp_path: Path, settings: Any) -> Iterator[Debians]:
    made = Debians(tmp_path)
    settings.PROMETHEUS_URL, settings.PROMETHEUS_TOKEN = made.url, ""
    try:
        made.until(0.01)
        yield made
    finally:
        made.stop()
        made.page.shutdown()
        made.page.server_close()


@pytest.mark.deploy
def test_debians_prometheus_answers(debians: Debians) -> None:
    queries = ("vector(0.25)", "scalar(vector(3))", "absent_series", "vector(0) / 0", "sum(")
    found = answered(*queries)
    assert found[:4] == [QueryResult(0.25), QueryResult(3.0), QueryResult(), QueryResult()]
    assert found[4].error.startswith("HTTP 400: invalid parameter")


@pytest.mark.deploy
def test_debians_prometheus_holds_a_delivery_while_it_is_stopped_and_ends_a_bad_one(
    policy: Policy, pool: Pool, fleet: Fleet, debians: Debians
) -> None:
    asked = {**GUARD, "query": 'sum(errors_share{pool="$pool"})'}
    delivery = looked(started(policy, TENTH, FULL, fleet=fleet, guards=[TTFT, asked]), fleet, 5)
    assert delivery.state == State.STEP
    debians.stop()
    delivery = looked(delivery, fleet, 10, 15)
    assert delivery.state == State.HOLDING
    assert "Prometheus cannot answer" in delivery.why
    debians.start()
    debians.until(0.01)
    delivery = looked(delivery, fleet, 20, 25, 30)
    assert delivery.state == State.STEP
    debians.until(0.5)
    delivery = looked(delivery, fleet, 35, 40)
    assert delivery.state == State.ABORTED
    assert "is 0.5, fails above 0.02, for 2 of 2 looks" in delivery.why
