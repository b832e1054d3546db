"""Recorded traffic as a trace: named by its pool, stored as a copy, played as an experiment."""

import base64
import json
import re

import pytest

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.modes import ephemeral_pool
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.experiments.tests.conftest import body
from controlplane.evidence.experiments.tests.fake_engine import engine_in_a_thread
from controlplane.evidence.experiments.tests.stand_in import StandIn
from controlplane.evidence.traces import library, questions
from controlplane.evidence.traces.models import Trace
from controlplane.evidence.traces.tests.test_recorded_format import recorded_line
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor
from router.contract.redis import redis_keys

pytestmark = pytest.mark.django_db
OTTO = Actor("user", "otto")


@pytest.fixture
def record(live_redis, data_dir):
    """Add entries to the stream as a router does."""

    def add(*lines: str, pool: str = "demo") -> None:
        for line in lines:
            live_redis.xadd(redis_keys.TRAFFIC, {"p": pool, "t": line})

    return add


def lines(count: int = 6, **changes) -> list[str]:
    return [recorded_line(at=1_700_000_000.0 + i, **changes) for i in range(count)]


def faults(answer) -> dict[str, str]:
    assert answer.status_code == 422, answer.content
    return {fault["path"]: fault["message"] for fault in answer.json()["errors"]}


def test_recorded_pools_are_listed_with_their_count_and_age(ci, record):
    record(*lines(3))
    record(*lines(2), pool="other")
    listed = {row["name"]: row for row in ci.get("/traces").json()}
    assert {"recorded:demo", "recorded:other"} < set(listed)
    row = listed["recorded:demo"]
    assert (row["source"], row["format"], row["summary"]) == ("recorded", "recorded", None)
    assert row["recorded"]["requests"] == 3
    assert 0 <= row["recorded"]["newest_age_s"] <= row["recorded"]["oldest_age_s"] < 60
    assert listed["agentic-demo"]["recorded"] is None


def test_more_than_one_page_of_entries_is_counted_and_read(ci, record, monkeypatch):
    monkeypatch.setattr("controlplane.evidence.traces.recorded_traffic.PAGE", 2)
    record(*lines(5))
    row = ci.get("/traces/recorded:demo").json()
    assert row["recorded"]["requests"] == row["summary"]["requests"] == 5


def test_recorded_traffic_can_be_summarized_before_it_is_played(ci, record):
    record(*lines(4))
    answer = ci.get("/traces/recorded:demo").json()
    assert answer["summary"]["requests"] == 4
    assert answer["summary"]["duration_s"] == 3
    assert answer["recorded"]["requests"] == 4


def test_the_error_for_a_missing_trace_lists_the_existing_ones(ci, record, demo_pool, sent):
    record(*lines(1), pool="other")
    assert ci.get("/traces/recorded:demo").status_code == 404
    told = faults(ci.post("/experiments", body(trace="recorded:demo")))["trace"]
    assert told == "recorded:demo: the routers have recorded no request of pool demo; known: recorded:other"
    assert not Trace.objects.exists()


def test_a_recording_with_only_failures_says_so(ci, record, demo_pool, sent):
    record(*lines(3, outcome="refused"))
    told = faults(ci.post("/experiments", body(trace="recorded:demo")))["trace"]
    assert "none of 3 entries" in told
    assert "answered" in told


def test_without_redis_other_traces_are_listed(ci, redis_away, data_dir):
    built_in = ["agentic-demo", "agentic-design", "documents-reread", "prompts-8k", *questions.LOADS]
    assert [row["name"] for row in ci.get("/traces").json()] == sorted(built_in)
    answer = ci.get("/traces/recorded:demo")
    assert answer.status_code == 404
    assert "does not answer" in answer.json()["detail"]


def test_an_experiment_plays_a_copy_that_does_not_change(ci, record, demo_pool, sent, data_dir, live_redis):
    record(*lines(6))
    made = ci.post("/experiments", body(trace="recorded:demo"))
    assert made.status_code == 201, made.content
    experiment = Experiment.objects.get()
    row = Trace.objects.get()
    assert experiment.trace == experiment.body["trace"] == row.name
    assert row.name.startswith("recorded-demo-20231114-221325-")
    assert (row.format, experiment.pacing) == ("recorded", "timestamps")
    assert AuditEntry.objects.get(action="trace.upload").subject == f"trace {row.name}"
    live_redis.delete(redis_keys.TRAFFIC)
    assert len(library.load(row.name, seed=1).requests) == 6
    assert (data_dir / "traces" / row.sha256).read_text().splitlines() == lines(6)


def test_every_load_of_a_matrix_plays_the_same_copy(ci, record, demo_pool, sent, monkeypatch):
    record(*lines(4))
    keep = library.keep
    monkeypatch.setattr(library, "keep", lambda *given: (keep(*given), record(*lines(1)))[0])
    body = {"name": "Loads", "traces": ["recorded:demo"], "loads": [1, 2, 3], "pool": "demo", "arms": ["lpwl"]}
    assert ci.post("/matrices", body).status_code == 201
    assert [row.trace for row in Experiment.objects.all()] == [Trace.objects.get().name] * 3


def test_equal_recordings_are_stored_once_and_a_longer_one_separately(ci, record, demo_pool, sent):
    record(*lines(2))
    for _ in range(2):
        assert ci.post("/experiments", body(trace="recorded:demo")).status_code == 201
    assert Trace.objects.count() == 1
    record(*lines(1))
    assert ci.post("/experiments", body(trace="recorded:demo")).status_code == 201
    assert Trace.objects.count() == 2


def test_nothing_is_stored_when_the_experiment_is_refused(ci, record, demo_pool, sent):
    record(*lines(2))
    assert "pool" in faults(ci.post("/experiments", body(trace="recorded:demo", pool="nope")))
    assert not Trace.objects.exists()


def test_a_closed_loop_is_refused_as_think_times_are_missing(ci, record, demo_pool, sent):
    record(*lines(2))
    told = faults(ci.post("/experiments", body(trace="recorded:demo", pacing="closed_loop")))
    assert "no think times" in told["pacing"]


def test_entries_that_cannot_be_read_are_left_out(record):
    record("{", json.dumps({"schema": 99}), "{}", *lines(2))
    assert library.entry("recorded:demo").summary.requests == 2


def test_recorded_traffic_runs_as_an_experiment(record, demo_pool, sent, monkeypatch):
    shared = base64.b64encode(b"abcdefgh12345678").decode()
    record(*lines(8, blocks=shared, input_tokens=1100, output_tokens=4))
    asked = body(trace="recorded:demo", duration_s=10, time_scale=100)
    experiment = services.start_experiment(ExperimentIn.model_validate(asked), OTTO)
    with engine_in_a_thread() as engine:
        StandIn(engine.url).install(lambda name, value: monkeypatch.setattr(ephemeral_pool, name, value))
        running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    assert experiment.status == "done", experiment.cause
    for run in experiment.runs.all():
        assert sorted(one.input_tokens for one in records.read(run.records_path)) == [1100] * 8


def test_the_page_says_what_is_known_about_each_trace_and_why_the_rest_is_unknown(client, otto, record, settings):
    record(*lines(3))
    client.force_login(otto)
    page = client.get("/experiments/traces/").content.decode()
    rows = {
        name: row for name, row in re.findall(r'<th scope="row" class="break">(\S+)</th>(.*?)</tr>', page, re.DOTALL)
    }
    assert "1,851</td>" in rows["agentic-demo"]
    assert "20 min</td>" in rows["agentic-demo"]
    assert "33,006 tokens" in rows["agentic-demo"]
    assert "336 tokens" in rows["agentic-demo"]
    assert ">3</td>" in rows["recorded:demo"]
    assert "Still being recorded" in rows["recorded:demo"]
    assert "–" not in "".join(rows.values())
    assert ">Size</th>" not in page


def test_the_page_lists_recorded_traffic_and_the_form_offers_it(client, otto, record):
    record(*lines(3))
    client.force_login(otto)
    assert re.search(r"recorded, last [\d.]+ s ago", client.get("/experiments/traces/").content.decode())
    assert 'value="recorded:demo"' in client.get("/experiments/new").content.decode()
