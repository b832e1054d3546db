"""Starting a preview: its draft, its pool and traffic, and when an earlier preview is returned instead."""

import pytest
import redis

from controlplane.common import computing
from controlplane.evidence.previews import policy_job, selectors, services, source
from controlplane.evidence.previews.analysis.compute import read_part
from controlplane.evidence.previews.body import PreviewIn
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.tests.conftest import OTTO, sim_pool
from controlplane.evidence.traces.tests.conftest import mooncake_line
from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.tests.conftest import edit
from fleet import jobs
from fleet.jobs import CANCELLED, DONE, FAILED, QUEUED
from router.contract.redis import redis_keys
from router.contract.values.problem import InvalidInput

pytestmark = pytest.mark.usefixtures("sent")


def start(policy, **asked):
    return services.start(policy, OTTO, PreviewIn(**asked))


def ended(preview, status=DONE):
    jobs.end(jobs.claim(Preview, preview.pk), status)
    preview.refresh_from_db()
    return preview


def test_a_draft_is_previewed_against_the_live_version(policy, draft, sent):
    made = start(policy)
    assert (made.live_version, made.draft_revision, made.pool) == (1, draft.revision, "demo")
    assert made.draft_document["classes"]["heavy_new_tokens"] == 9000
    assert (made.status, made.total) == (QUEUED, 3 * made.trace["played"])
    assert sent == [("previews.run", [made.pk], "control")]


def test_the_audit_log_names_who_started_a_preview_even_after_the_account_is_deleted(policy, draft):
    made = start(policy)
    entry = AuditEntry.objects.get(action="preview.start")
    assert (entry.actor_name, entry.subject) == ("otto", f"preview {made.pk} of default")
    assert entry.after["draft_sha256"] == made.draft_sha256
    assert made.actor == "otto"


def test_without_recorded_traffic_the_built_in_trace_is_played(policy, draft):
    made = start(policy)
    assert (made.trace_name, made.trace["source"], made.trace["last_at"]) == ("agentic-demo", "built-in", None)


def test_too_few_recorded_requests_are_not_played(policy, draft, record):
    record(199)
    assert start(policy).trace_name == "agentic-demo"


def test_the_newest_recorded_requests_of_the_pool_are_played(policy, draft, record):
    record(210)
    record(5, pool="other")
    made = start(policy, max_requests=204)
    assert made.trace_name == "recorded:demo"
    assert (made.trace["requests"], made.trace["played"]) == (210, 204)
    assert made.trace["last_at"] - made.trace["first_at"] == 203


def test_the_first_requests_of_a_named_trace_are_played(policy, draft):
    made = start(policy, trace="agentic-demo", max_requests=30)
    assert made.trace["played"] == 30 < made.trace["requests"]


@pytest.mark.parametrize("name", ["recorded:demo", "large.jsonl"])
def test_a_large_trace_is_read_outside_the_web_process(policy, draft, record, data_dir, monkeypatch, name):
    record(210)
    (data_dir / "large.jsonl").write_text("\n".join(mooncake_line(timestamp=i) for i in range(40)))
    monkeypatch.setenv("WEIR_TRACE_DIR", str(data_dir))
    made = start(policy, trace=name, max_requests=30).trace
    beside = []
    monkeypatch.setattr(computing, "_beside", lambda read, given: beside.append(read) or read(*given))
    monkeypatch.setattr(source, "LARGE", 1)
    with computing.asked_by(lambda: "otto"):
        part = source.take(name, 30, 1, made["until"])
    assert (part.facts(), beside) == (made, [read_part])


def test_the_pool_with_the_most_recorded_requests_is_chosen(policy, draft, record):
    sim_pool("quiet")
    sim_pool("busy")
    record(3)
    record(4, pool="busy")
    assert start(policy).pool == "busy"
    assert start(policy, pool="quiet").pool == "quiet"


@pytest.mark.parametrize(
    ("asked", "path", "told"),
    [
        ({"pool": "nope"}, "pool", "allowed: demo"),
        ({"trace": "nope"}, "trace", "there is no trace nope"),
        ({"trace": "recorded:demo"}, "trace", "have recorded no request of pool demo"),
    ],
)
def test_an_invalid_choice_is_refused_with_the_allowed_ones(policy, draft, asked, path, told):
    with pytest.raises(InvalidInput) as refused:
        start(policy, **asked)
    (fault,) = refused.value.problems
    assert fault.path == path
    assert told in fault.message
    assert not Preview.objects.exists()


def test_a_recording_without_an_answered_request_is_refused(policy, draft, record):
    record(3, outcome="refused")
    with pytest.raises(InvalidInput, match="none of 3 entries"):
        start(policy, trace="recorded:demo")


def test_a_recording_cannot_be_chosen_while_redis_is_unreachable(policy, draft, redis_away):
    with pytest.raises(InvalidInput, match="Redis, which does not answer"):
        start(policy, trace="recorded:demo")
    assert start(policy).trace_name == "agentic-demo"


def test_a_policy_without_pools_cannot_be_previewed(policy):
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput, match="no pool uses policy default"):
        start(policy)


def test_a_draft_that_equals_the_live_version_is_not_previewed(policy, pool):
    policy_services.open_draft(policy, OTTO)
    with pytest.raises(InvalidInput, match="equals v1"):
        start(policy)


def test_without_a_draft_there_is_nothing_to_preview(policy, pool):
    with pytest.raises(Conflict) as conflict:
        start(policy)
    assert conflict.value.kind == "gone"


def test_a_draft_saved_by_others_in_the_meantime_is_not_previewed(policy, draft):
    with pytest.raises(Conflict) as conflict:
        services.start(policy, OTTO, if_match="d0.1")
    assert conflict.value.current == draft.etag
    assert services.start(policy, OTTO, if_match=draft.etag).status == QUEUED


def test_a_preview_of_engines_without_a_model_fails_at_once_and_says_what_to_do(policy, draft, sent):
    sim_pool("real", kind="vllm", model="m")
    made = start(policy, pool="real")
    assert made.status == FAILED
    assert selectors.as_dict(made)["trust"] == [{"code": "not_modelled", "text": made.cause}]
    assert "real" in made.cause
    assert sent == []


def test_the_same_question_while_it_is_computed_returns_the_same_preview(policy, draft, sent):
    first = start(policy)
    assert start(policy).pk == first.pk
    assert len(sent) == AuditEntry.objects.filter(action="preview.start").count() == 1
    assert not first.was_cached


def test_the_same_question_later_returns_the_earlier_result_marked_as_such(policy, draft):
    first = ended(start(policy))
    assert selectors.as_dict(first)["cached"] is False
    again = start(policy)
    assert again.pk == first.pk
    assert selectors.as_dict(again)["cached"] is True


@pytest.mark.parametrize("status", [FAILED, CANCELLED])
def test_a_preview_without_a_result_is_computed_again(policy, draft, status):
    first = ended(start(policy), status)
    assert start(policy).pk != first.pk


@pytest.mark.parametrize(
    "asked", [{"seeds": (2,)}, {"max_requests": 50}, {"trace": "agentic-demo", "max_requests": 60}]
)
def test_another_question_gets_its_own_preview(policy, draft, asked):
    assert start(policy).pk != start(policy, **asked).pk


def test_other_engines_make_the_question_different(policy, draft, pool):
    first = start(policy)
    pool.engine = {"max_num_seqs": 16}
    pool.save()
    assert start(policy).pk != first.pk


def test_changed_code_makes_the_question_different(policy, draft, monkeypatch):
    first = start(policy)
    monkeypatch.setattr(services, "source_sha256", lambda: "another")
    assert start(policy).pk != first.pk


def test_newer_traffic_makes_the_question_different(policy, draft, record):
    record(200)
    first = start(policy)
    record(1)
    assert start(policy).pk != first.pk


def test_only_the_newest_previews_are_kept(policy, draft, monkeypatch):
    monkeypatch.setattr(services, "KEPT", 3)
    made = [ended(start(policy, seeds=(seed,))) for seed in range(1, 6)]
    assert set(Preview.objects.values_list("pk", flat=True)) == {one.pk for one in made[2:]}


def test_a_preview_that_has_not_ended_is_kept_however_old(policy, draft, monkeypatch):
    monkeypatch.setattr(services, "KEPT", 1)
    waiting = start(policy, seeds=(1,))
    start(policy, seeds=(2,))
    assert Preview.objects.filter(pk=waiting.pk).exists()


def test_a_broker_that_is_unreachable_leaves_a_preview_queued(policy, draft, monkeypatch):
    def refuse(*_, **__):
        raise redis.ConnectionError("refused")

    monkeypatch.setattr("controlplane.celery.app.send_task", refuse)
    assert start(policy).status == QUEUED


def test_cancelling_ends_a_preview_once(policy, draft):
    made = start(policy)
    assert policy_job.cancel(made, OTTO)
    assert (made.status, made.cause) == (CANCELLED, "cancelled by otto")
    assert not policy_job.cancel(made, OTTO)
    assert AuditEntry.objects.filter(action="preview.cancel").count() == 1
    assert not jobs.claim(Preview, made.pk)


def test_a_limited_number_is_computed_at_once_and_the_next_when_one_has_ended(policy, draft, sent):
    first, second, third = (start(policy, seeds=(seed,)) for seed in (1, 2, 3))
    held = jobs.claim(Preview, first.pk)
    assert jobs.claim(Preview, second.pk)
    assert not jobs.claim(Preview, third.pk)
    del sent[:]
    jobs.fail(held, "no trace")
    assert sent == [("previews.run", [third.pk], "control")]
    assert jobs.claim(Preview, third.pk)


def test_traffic_that_arrives_while_it_waits_is_not_played(policy, draft, record, live_redis):
    record(200)
    made = start(policy)
    record(10)
    part = source.take(made.trace_name, made.max_requests, 1, made.trace["until"])
    assert part.facts() == {**made.trace, "requests": 210}
    assert live_redis.xlen(redis_keys.TRAFFIC) == 210


def test_a_draft_that_only_upgrades_an_older_schema_changes_nothing(policy, live_redis):
    live = policies.live_version(policy)
    strategy = live.document.pop("strategy")
    live.document = {**live.document, "schema": 1, "route": strategy}
    live.save()
    policy_services.open_draft(policy, OTTO)
    with pytest.raises(InvalidInput, match="equals v1"):
        start(policy)
