"""The state machine: one check of a process and its endpoints, and the resulting state."""

import dataclasses
from math import inf

import pytest

from fleet.plan.state import (
    PAUSED,
    SILENT_S,
    STABLE_S,
    InstanceRecord,
    Move,
    Observation,
    backoff_s,
    beside,
    is_stable,
    next_move,
    replace_after_s,
)

SEEN = InstanceRecord(state="ready", reason="answers", desired="running", failing=False, failures=0, since=1000.0)
WELL = Observation(
    at=2000.0,
    alive=True,
    suspended=False,
    health="ok",
    serves_model=True,
    has_metrics=True,
    silent_s=0.0,
    error="",
    failure_cause="",
)


def move(state: str = "ready", *, record: dict | None = None, **observation: object) -> Move | None:
    was = dataclasses.replace(SEEN, state=state, **(record or {}))
    return next_move(was, dataclasses.replace(WELL, **observation))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["ready", "draining", "stopping", "starting"])
def test_a_healthy_engine_is_left_unchanged(state: str) -> None:
    assert move(state) is None


def test_loading_ends_when_health_page_and_model_list_answer() -> None:
    assert move("loading") == Move("ready", "answers /health and serves the model")
    assert move("loading", serves_model=False) is None
    assert move("loading", health="refused") is None


def test_an_engine_that_requires_a_key_gets_no_requests_and_its_page_gives_the_reason() -> None:
    why = "GET /v1/models answers 401: …"
    assert move("loading", serves_model=False, closed_why=why) == Move("loading", why)
    assert move("ready", closed_why=why) == Move("unreachable", why)
    assert move("draining", closed_why=why) == Move("unreachable", why)
    assert move("unreachable", closed_why=why) == Move("unreachable", why)
    assert move("unreachable", record={"reason": why}, closed_why=why) is None
    assert move("unreachable", record={"reason": why}) == Move("ready", "answers /health and serves the model")


def test_a_paused_engine_gets_no_requests_and_is_never_replaced_for_it() -> None:
    assert move("ready", closed_why=PAUSED) == Move("unreachable", PAUSED)
    assert move("unreachable", record={"reason": PAUSED}, closed_why=PAUSED) is None
    assert replace_after_s(PAUSED, 10.0) == inf
    assert move("unreachable", record={"reason": PAUSED}) == Move("ready", "answers /health and serves the model")


def test_a_drained_instance_gets_no_requests_when_it_becomes_ready() -> None:
    loaded = move("loading", record={"desired": "drained"})
    assert loaded is not None
    assert loaded.to == "draining"


@pytest.mark.parametrize("state", ["loading", "ready", "draining", "unreachable"])
def test_a_process_that_ended_has_failed_with_the_end_of_its_log(state: str) -> None:
    gone = move(state, alive=False, failure_cause="its log ends with: boom")
    assert gone == Move("failed", f"the process ended while {state}: its log ends with: boom", failure=True)


def test_a_terminated_process_is_stopped_or_failed_as_intended() -> None:
    assert move("stopping", alive=False) == Move("stopped", "answers")
    assert move("stopping", alive=False, record={"failing": True}) == Move("failed", "answers")


def test_a_full_disk_under_a_kv_tier_is_reported_and_serving_continues() -> None:
    said = move(full_folder="/ssd")
    assert said == Move("ready", "the disk of its KV tier is full (/ssd); it still serves but cannot write there")
    assert move(full_folder="/ssd", record={"reason": said.reason}) is None
    assert move(record={"reason": said.reason}) == Move("ready", "answers /health and serves the model")


@pytest.mark.parametrize("state", ["ready", "draining"])
@pytest.mark.parametrize("health", ["slow", "refused", "error"])
def test_silence_takes_an_instance_out_of_routing_after_a_moment(state: str, health: str) -> None:
    observation = {"health": health, "has_metrics": False, "error": "GET /health took longer"}
    assert move(state, **observation, silent_s=SILENT_S - 0.1) is None
    assert move(state, **observation, silent_s=SILENT_S) == Move(
        "unreachable", "no answer for 1.9 s: GET /health took longer"
    )


@pytest.mark.parametrize("state", ["ready", "draining"])
def test_a_suspended_process_is_taken_out_at_once(state: str) -> None:
    out = move(state, suspended=True)
    assert out is not None
    assert (out.to, "suspended" in out.reason) == ("unreachable", True)


def test_changing_metrics_distinguish_busy_from_dead() -> None:
    busy = move(health="slow", silent_s=60)
    assert busy is not None
    assert (busy.to, busy.reason.startswith("busy")) == ("ready", True)
    assert move(record={"reason": busy.reason}, health="slow", silent_s=60) is None
    assert move(record={"reason": busy.reason}) == Move("ready", "answers /health and serves the model")
    assert move("draining", health="slow", silent_s=60) is None


def test_arriving_tokens_distinguish_a_busy_host_from_a_dead_engine() -> None:
    late = {"health": "slow", "has_metrics": False, "silent_s": 60, "error": "GET /health took longer"}
    assert move(**late, produces=True) == Move("ready", "busy: /health is slow, but tokens arrive")
    assert move("unreachable", **late, produces=True) == Move("ready", "answers /health and serves the model")
    for gone in ({"health": "refused"}, {"produces": False}, {"suspended": True}):
        out = move(**{**late, "produces": True, **gone})
        assert out is not None
        assert out.to == "unreachable"


@pytest.mark.parametrize("health", ["error", "refused"])
def test_an_error_does_not_count_as_a_sign_of_work(health: str) -> None:
    out = move(health=health, silent_s=60)
    assert out is not None
    assert out.to == "unreachable"


def test_an_instance_that_answers_again_returns_to_routing() -> None:
    assert move("unreachable") == Move("ready", "answers /health and serves the model")
    assert move("unreachable", suspended=True) is None
    assert move("unreachable", health="slow") is None


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (5000, 300)]
)
def test_back_off_doubles_up_to_five_minutes(failures: int, seconds: float) -> None:
    assert backoff_s(failures) == seconds


def test_an_instance_is_stable_once_it_has_been_ready_for_a_minute() -> None:
    assert is_stable(SEEN, SEEN.since + STABLE_S)
    assert not is_stable(SEEN, SEEN.since + STABLE_S - 1)
    assert not is_stable(dataclasses.replace(SEEN, state="draining"), SEEN.since + STABLE_S)


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("ready", "answers /health and serves the model", ""),
        ("ready", "takes requests again", ""),
        ("ready", "busy: /health is slow, but /metrics answers", "busy: /health is slow, but /metrics answers"),
        ("draining", "drained by ada: a fan is loud", "by ada: a fan is loud"),
        ("drained", "drained on request; the process stays", "on request; the process stays"),
        ("draining", "its configuration changed", "its configuration changed"),
        ("failed", "ended with exit status 1", "ended with exit status 1"),
    ],
)
def test_a_reason_does_not_repeat_its_status_and_is_empty_if_all_is_well(status: str, reason: str, said: str) -> None:
    assert beside(status, reason) == said
