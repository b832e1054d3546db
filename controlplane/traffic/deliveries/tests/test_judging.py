"""The events of a delivery that no person causes: looks, stops, the clock, freezes; and the values in Redis."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.people.notices.models import Channel, Notice
from controlplane.traffic.deliveries import judging, results, selectors, services
from controlplane.traffic.deliveries.judge import memory, step
from controlplane.traffic.deliveries.judge.findings import GuardFinding, LookFacts, Verdict
from controlplane.traffic.deliveries.judge.look import Proposal
from controlplane.traffic.deliveries.judge.memory import Block, Memory, PoolMemory
from controlplane.traffic.deliveries.models import Delivery, Freeze, Look
from controlplane.traffic.deliveries.moving import clock_s
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.states import Hold, State, Trigger
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OLGA, OTTO, SHADOW, WHY, proposed
from controlplane.traffic.policies import publication
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import PolicyVersion
from router.contract.redis.delivery import StopValue
from router.contract.values.problem import InvalidInput

NOW = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)
SWITCHBACK = {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 4}
ERROR = (Hold("tallies", "tallies are 20 s old"),)
FINDING = GuardFinding("ttft", "fail", "", lower=0.31, request_class="heavy")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def at(delivery: Delivery, state: str, **fields: Any) -> Delivery:
    Delivery.objects.filter(pk=delivery.pk).update(**{"state": state, "state_at": NOW, "generation": 4, **fields})
    delivery.refresh_from_db()
    return delivery


@pytest.fixture
def canary(delivery: Delivery) -> Delivery:
    """A delivery that has been in its first canary since noon."""
    return at(delivery, State.STEP, step=1, share=0.05, clock_at=NOW)


def looked(delivery: Delivery, what: Trigger, now: datetime = NOW, **more: Any) -> Delivery:
    return services.judge_step(delivery, Proposal(what, **{"why": "because", **more}), now)


def freeze(start: datetime, end: datetime, **fields: Any) -> Freeze:
    times = {"start": f"{start:%Y-%m-%dT%H:%M}", "end": f"{end:%Y-%m-%dT%H:%M}"}
    return Freeze.objects.create(**{"name": "Christmas", "zone": "UTC", "reason": WHY, **times, **fields})


# Looks


def test_every_look_is_stored_with_what_it_found_and_proposed(canary):
    done = looked(
        canary, Trigger.STAY, findings=(FINDING,), facts=LookFacts(routers=3), memory=Memory(errors_before=0.1)
    )
    look = Look.objects.get()
    assert (look.state, look.step, look.generation, look.proposal, look.why) == ("step", 1, 4, "stay", "because")
    assert (look.found, look.facts) == ((FINDING,), {"routers": 3, "tallies": 0, "guards": 0, "ms": 0.0})
    assert (done.memory["errors_before"], done.revision) == (0.1, canary.revision)
    assert not AuditEntry.objects.filter(action="delivery.stay").exists()


def test_a_failed_guard_aborts_with_its_figures_in_the_audit_log(canary, policy):
    done = looked(canary, Trigger.FAIL, why="heavy TTFT is 31 % worse", findings=(FINDING,))
    assert (done.state, done.share, done.by, done.why) == ("aborted", 0.0, "judge", "heavy TTFT is 31 % worse")
    entry = AuditEntry.objects.get(action="delivery.fail")
    assert (entry.actor_kind, entry.reason, entry.after["figures"]) == ("system", done.why, [FINDING.as_dict()])
    assert entry.after["plan"] == done.plan
    assert selectors.failed_before(policy, done.candidate.document) == done


def test_each_transition_is_a_notice_in_the_same_transaction(canary, monkeypatch):
    Channel.objects.create(name="ops", url="https://example.com/hook", events=["delivery.*"])
    looked(canary, Trigger.HOLD, holds=ERROR)
    notice = Notice.objects.get()
    assert (notice.event, notice.subject) == ("delivery.holding", "policy default v2")
    facts = {"delivery": canary.pk, "policy": "default", "version": 2, "base": 1, "step": 2, "steps": 4, "by": "judge"}
    assert notice.facts == facts | {"pools": ["demo"]}
    monkeypatch.setattr("controlplane.traffic.deliveries.moving._notify", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        services.pause(selectors.delivery(canary.pk), OTTO)
    assert selectors.delivery(canary.pk).state == "holding"


def test_a_passed_canary_starts_the_next_share_and_the_judges_memory_is_stored(canary):
    done = looked(canary, Trigger.PASS, later(700), memory=Memory(errors_before=0.01))
    assert (done.step, done.share, done.generation, done.step_clock_s) == (2, 0.25, 5, 0.0)
    assert (done.step_started_at, done.clock_at) == (later(700), later(700))
    assert done.memory["errors_before"] == 0.01


def test_a_passed_step_that_asks_for_approval_waits(canary):
    assert looked(at(canary, State.STEP, step=2, share=0.25), Trigger.PASS).state == "waiting"


def test_the_last_pass_makes_the_candidate_live(canary, policy):
    Delivery.objects.filter(pk=canary.pk).update(plan={**canary.plan, "steps": [{**CANARY, "max_s": 3600}, FULL]})
    done = looked(at(canary, State.STEP, step=0, share=0.05), Trigger.PASS)
    assert (done.state, done.promoted_at, policies.live_version(policy).number) == ("baking", NOW, 2)


def test_a_plan_without_the_step_full_finishes_without_a_change(redis_away, policy, pool):
    made = at(proposed(policy, CANARY), State.STEP, step=0, share=0.05)
    done = looked(made, Trigger.PASS)
    assert (done.state, done.share, policies.live_version(policy).number) == ("finished", 0.0, 1)


def test_a_failure_during_the_bake_restores_the_old_document_as_a_new_version(canary, policy):
    services.advance(at(canary, State.WAITING, step=2, share=0.25), OTTO, WHY)
    done = looked(canary, Trigger.FAIL, why="8 % errors")
    live = policies.live_version(policy)
    assert (done.state, live.number, live.rollback_of, live.reason) == ("rolled_back", 3, 1, "8 % errors")
    assert live.sha256 == done.base.sha256
    assert selectors.failed_before(policy, done.candidate.document) == done


def test_a_hold_gives_every_request_to_live_and_its_end_begins_the_step_again(canary):
    held = looked(canary, Trigger.HOLD, later(100), holds=ERROR)
    assert (held.state, held.share, held.generation, held.why_held) == ("holding", 0.0, 5, ERROR)
    assert clock_s(held, later(500)) == 100.0
    for second in (505, 510, 515):
        held = looked(held, Trigger.GOOD, later(second), why="")
    assert (held.state, held.share, held.why) == ("step", 0.05, "three good looks in a row")
    assert clock_s(held, later(525)) == 10.0
    assert (held.generation, held.step_started_at) == (6, later(515))
    assert AuditEntry.objects.filter(action="delivery.good").count() == 1


def test_a_hold_that_continues_for_the_same_reason_is_not_recorded_again(canary):
    held = looked(canary, Trigger.HOLD, holds=ERROR)
    for second in (5, 10):
        held = looked(held, Trigger.HOLD, later(second), holds=(Hold("tallies", f"tallies are {20 + second} s old"),))
    assert (held.state, held.why_held, held.looks.count()) == ("holding", ERROR, 3)
    assert AuditEntry.objects.filter(action="delivery.hold").count() == 1


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every router acknowledge the rollout."""
    monkeypatch.setattr(publication, "behind_generation", lambda *_: [])


@pytest.fixture
def switchback(redis_away: None, policy: Any, pool: Any) -> Delivery:
    """A switchback in its fourth block."""
    delivery = looked(at(proposed(policy, CANARY, SWITCHBACK, FULL), State.STEP, step=0, share=0.05), Trigger.PASS)
    for _ in range(3):
        delivery = looked(delivery, Trigger.BLOCK)
    counted = [Block(number, bool(delivery.blocks[number]), {}, 5 + number) for number in range(4)]
    return looked(delivery, Trigger.STAY, memory=Memory({"demo": PoolMemory(blocks=counted)}))


def numbers(delivery: Delivery) -> list[int]:
    return [block.number for block in memory.load(delivery.memory).pools["demo"].blocks]


def test_a_switchback_that_is_paused_keeps_its_complete_pairs_and_continues_after_them(switchback, acknowledged):
    paused = services.pause(switchback, OTTO)
    assert (paused.share, paused.block) == (0.0, 3)
    done = services.tick(services.resume(paused, OTTO, WHY), later(400))
    assert (done.state, done.block, done.step_clock_s, done.share) == ("step", 2, 120.0, float(done.blocks[2]))
    assert numbers(done) == [0, 1]


def test_an_extended_switchback_begins_with_its_existing_pairs(switchback):
    before = switchback.blocks
    done = services.extend(switchback, OTTO, WHY, 2)
    assert (done.blocks[:8], len(done.blocks), done.state) == (before, 12, "step")
    assert [sum(done.blocks[n : n + 2]) for n in range(0, 12, 2)] == [1] * 6
    assert numbers(done) == [0, 1, 2, 3]
    entry = AuditEntry.objects.get(action="delivery.extend")
    assert (entry.actor_name, entry.reason, entry.after["pairs"]) == ("otto", WHY, 2)


def test_a_paused_switchback_that_is_extended_continues_with_its_counts(switchback, acknowledged):
    for _ in range(5):
        switchback = looked(switchback, Trigger.BLOCK)
    paused = looked(switchback, Trigger.PAUSE, why="cannot tell after 4 pairs")
    assert (paused.state, paused.block, paused.share) == ("paused", 8, 0.0)
    done = services.tick(services.extend(paused, OTTO, WHY, 1), later(700))
    assert (done.state, done.block, len(done.blocks), done.step_clock_s) == ("step", 8, 10, 480.0)
    assert numbers(done) == [0, 1, 2, 3]


@pytest.mark.parametrize("pairs", [0, -1, 97, True])
def test_a_switchback_has_a_hundred_pairs_at_most(switchback, pairs):
    with pytest.raises(InvalidInput) as refused:
        services.extend(switchback, OTTO, WHY, pairs)
    assert [each.text for each in refused.value.problems] == ["out of range; allowed: 1 to 96"]


def test_a_canary_is_not_extended(canary):
    with pytest.raises(Conflict, match="only a switchback is extended by pairs"):
        services.extend(canary, OTTO, WHY, 1)


def test_the_result_of_a_step_that_ends_is_stored_with_the_delivery(canary):
    fine = GuardFinding(
        "ttft", "fine", "warm TTFT × 0.80", upper=-0.1, estimate=-0.2, request_class="warm", needed=True
    )
    looked(canary, Trigger.STAY, findings=(fine,))
    done = services.advance(selectors.delivery(canary.pk), OTTO, WHY)
    (result,) = results.read(done.results, stored_plan.read(done.plan))
    assert (result.step, result.what) == (2, "advance")
    (shown,) = result.shown
    assert (shown.metric, shown.request_class, shown.estimate, shown.word) == ("ttft", "warm", -0.2, "better")


def test_a_repeated_step_replaces_its_result(canary, acknowledged):
    fine = GuardFinding("ttft", "inconclusive", "", upper=0.3, estimate=0.1, request_class="warm", needed=True)
    paused = looked(canary, Trigger.PAUSE, findings=(fine,))
    again = services.tick(services.resume(paused, OTTO, WHY), later(10))
    done = looked(again, Trigger.FAIL, findings=(FINDING,))
    (result,) = results.read(done.results, stored_plan.read(done.plan))
    assert (result.what, result.shown[0].word) == ("fail", "worse")


def test_each_comparison_has_its_description():
    def word(verdict: Verdict, upper: float | None) -> str:
        return results.word(GuardFinding("ttft", verdict, "", upper=upper))

    assert [word("fine", -0.01), word("fine", 0.01), word("inconclusive", -0.1), word("no_data", None)] == [
        "better",
        "no worse",
        "cannot tell",
        "cannot tell",
    ]


def test_a_switchback_draws_its_blocks_in_pairs_and_takes_them_one_by_one(redis_away, policy, pool):
    made = at(proposed(policy, CANARY, SWITCHBACK, FULL), State.STEP, step=0, share=0.05)
    done = looked(made, Trigger.PASS)
    blocks = done.blocks
    assert [sum(blocks[n : n + 2]) for n in range(0, 8, 2)] == [1, 1, 1, 1]
    shares = [done.share]
    for _ in blocks[1:]:
        done = looked(done, Trigger.BLOCK)
        shares.append(done.share)
    assert shares == [float(block) for block in blocks]
    assert done.generation == 5 + 7


@pytest.mark.parametrize("what", [Trigger.PASS, Trigger.FAIL, Trigger.HOLD, Trigger.BLOCK])
def test_a_proposal_that_the_state_does_not_allow_changes_nothing(delivery, what):
    done = looked(delivery, what)
    assert (done.state, Look.objects.count()) == ("ready", 0)


def test_only_one_of_two_judges_changes_the_delivery(canary):
    mine, theirs = selectors.delivery(canary.pk), selectors.delivery(canary.pk)
    first = looked(mine, Trigger.PASS)
    second = looked(theirs, Trigger.PASS)
    assert (first.step, second.step, second.revision) == (2, 2, first.revision)
    assert Look.objects.count() == 1


def test_an_abort_by_a_person_wins_over_a_concurrent_look(canary):
    stale = selectors.delivery(canary.pk)
    services.abort(canary, OTTO)
    assert looked(stale, Trigger.PASS).state == "aborted"


def test_the_memory_of_a_late_judge_is_not_stored(canary):
    stale = selectors.delivery(canary.pk)
    services.pause(canary, OTTO)
    looked(stale, Trigger.STAY, memory=Memory(errors_before=0.9))
    assert selectors.delivery(canary.pk).memory == {}


# Stops


@pytest.mark.parametrize(("by", "what", "failed"), [("router", "trip", True), ("person", "abort", False)])
def test_a_stop_in_redis_is_recorded(canary, policy, by, what, failed):
    stop = StopValue(delivery=canary.pk, why="KeyError: 'x'", by=by, request="r-1", at=0.0)
    done = services.stopped(canary, stop, NOW)
    assert (done.state, done.what, done.why) == ("aborted", what, "KeyError: 'x' (request r-1)")
    assert (selectors.failed_before(policy, done.candidate.document) is not None) is failed


def test_a_stop_of_an_ended_delivery_changes_nothing(canary):
    services.abort(canary, OTTO)
    stop = StopValue(delivery=canary.pk, why="late", by="router", at=0.0)
    assert services.stopped(canary, stop, NOW).what == "abort"


# The clock


def test_a_proposal_expires(redis_away, policy, pool):
    made = proposed(policy, approvals={"needed": 1, "expires_s": 3600})
    assert services.tick(made, made.proposed_at + timedelta(seconds=3599)).state == "proposed"
    assert services.tick(made, made.proposed_at + timedelta(seconds=3600)).state == "expired"


@pytest.fixture
def scheduled(redis_away: None, policy: Any, pool: Any) -> Delivery:
    """The delivery starts at 03:00 in Berlin, which is 01:00 UTC."""
    start = {"at": "2027-08-02T03:00", "zone": "Europe/Berlin", "latest_s": 3600}
    return proposed(policy, start=start, approvals={"needed": 1})


NIGHT = datetime(2027, 8, 2, 1, 0, tzinfo=UTC)


def test_a_scheduled_delivery_starts_at_its_time(scheduled):
    services.approve(scheduled, OLGA)
    assert scheduled.starts_at == NIGHT
    assert services.tick(scheduled, NIGHT - timedelta(seconds=1)).state == "ready"
    done = services.tick(scheduled, NIGHT)
    assert (done.state, done.why, done.started_at) == ("arming", "its time, 2027-08-02 03:00 Europe/Berlin", NIGHT)


def test_a_start_waits_for_the_end_of_a_freeze_and_is_missed_after_its_latest_time(scheduled):
    services.approve(scheduled, OLGA)
    freeze(NIGHT, NIGHT + timedelta(minutes=30))
    assert services.tick(scheduled, NIGHT).state == "ready"
    assert services.tick(scheduled, NIGHT + timedelta(minutes=30)).state == "arming"


def test_a_start_in_a_long_freeze_is_missed_and_says_so(scheduled):
    services.approve(scheduled, OLGA)
    freeze(NIGHT, NIGHT + timedelta(hours=5))
    done = services.tick(scheduled, NIGHT + timedelta(seconds=3601))
    assert (done.state, done.why) == ("missed", "the freeze Christmas is in force until 2027-08-02 06:00 UTC")


def test_a_start_checks_its_approvals_again(scheduled):
    services.approve(scheduled, OLGA)
    scheduled.approvals.update(sha256="of something else")
    assert services.tick(scheduled, NIGHT).state == "ready"
    done = services.tick(scheduled, NIGHT + timedelta(seconds=3601))
    assert (done.state, done.why) == ("missed", "approvals are missing")


def test_a_ready_delivery_is_missed_when_another_version_is_live(delivery, policy):
    PolicyVersion.objects.create(policy=policy, number=9, document={}, sha256="x", reason=WHY, actor_kind="user")
    type(policy).objects.update(live=9)
    done = services.tick(delivery, NOW)
    assert (done.state, done.why) == ("missed", "v9 is live by now")


def test_a_running_delivery_is_aborted_when_another_version_is_live(canary, policy):
    PolicyVersion.objects.create(policy=policy, number=9, document={}, sha256="x", reason=WHY, actor_kind="user")
    type(policy).objects.update(live=9)
    done = services.tick(canary, NOW)
    assert (done.state, done.why) == ("aborted", "v9 has gone live meanwhile")


def test_arming_waits_for_every_router_and_names_late_routers(canary, monkeypatch):
    behind = ["router-2"]
    monkeypatch.setattr(publication, "behind_generation", lambda *_: behind)
    arming = at(canary, State.ARMING, share=0.0)
    assert services.tick(arming, later(9)).state == "arming"
    done = services.tick(arming, later(10))
    assert (done.state, done.why) == ("paused", "not acknowledged within 10 s: router-2")
    behind.clear()
    again = services.tick(at(done, State.ARMING, share=0.0), later(3))
    assert (again.state, again.share, again.step_started_at) == ("step", 0.05, later(3))


def test_arming_without_redis_pauses(canary):
    done = services.tick(at(canary, State.ARMING, share=0.0), later(10))
    assert (done.state, done.why) == ("paused", "not acknowledged within 10 s: Redis is away")


@pytest.mark.parametrize(
    ("state", "judge_s", "routers_s"),
    [(State.STEP, 10, 30), (State.HOLDING, 10, 30), (State.BAKING, 10, None), (State.ARMING, 20, None)]
    + [(state, None, None) for state in sorted({*State} - {State.STEP, State.HOLDING, State.BAKING, State.ARMING})],
)
def test_a_missing_judge_is_noticed_before_routers_give_up_a_split(canary, state, judge_s, routers_s):
    left = at(canary, state)
    for silence, since in ((judge_s, step.unjudged_s), (routers_s, step.unwatched_since)):
        for seconds, silent in ((silence or 10, False), ((silence or 3600) + 1, silence is not None)):
            assert (since(left, later(seconds)) is not None) is silent


def test_a_hold_that_lasts_too_long_pauses(canary):
    held = looked(canary, Trigger.HOLD, holds=ERROR)
    assert services.tick(held, later(599)).state == "holding"
    done = services.tick(held, later(600))
    assert (done.state, done.why, done.share) == ("paused", "held for 10 min: tallies are 20 s old", 0.0)


def test_a_judge_pauses_after_an_absence_and_says_so(canary):
    done = judging.away(canary, later(0), later(63))
    assert (done.state, done.share) == ("paused", 0.0)
    assert done.why == (
        "the judge was away from 12:00:00 UTC to 12:01:03 UTC; live served every request meanwhile; "
        "resume to begin the step again"
    )


def test_a_pause_of_a_day_aborts(canary):
    paused = at(canary, State.PAUSED)
    assert services.tick(paused, later(24 * 3600 - 1)).state == "paused"
    done = services.tick(paused, later(24 * 3600))
    assert (done.state, done.share, done.why) == ("aborted", 0.0, "paused for 24 h")


def test_after_its_bake_a_delivery_is_done(canary, policy):
    services.advance(at(canary, State.WAITING, step=2, share=0.25), OTTO, WHY)
    Delivery.objects.filter(pk=canary.pk).update(state_at=NOW)
    canary.refresh_from_db()
    assert services.tick(canary, later(599)).state == "baking"
    done = services.tick(canary, later(600))
    assert (done.state, policies.live_version(policy).number) == ("delivered", 2)


@pytest.mark.parametrize("state", [State.STEP, State.WAITING])
def test_a_tick_changes_nothing_if_nothing_is_due(canary, state):
    before = at(canary, state).revision
    assert services.tick(canary, later(5)).revision == before


def test_a_tick_that_loses_a_race_changes_nothing(canary):
    stale = selectors.delivery(at(canary, State.PAUSED).pk)
    services.abort(canary, OTTO)
    assert services.tick(stale, later(24 * 3600)).what == "abort"


# Freezes


def test_a_freeze_holds_a_canary_for_its_whole_duration(canary):
    freeze(later(-60), later(7200))
    held = services.tick(canary, NOW)
    assert (held.state, held.share) == ("holding", 0.0)
    assert held.holds == [{"code": "freeze", "text": "freeze Christmas until 2026-08-01 14:00 (UTC)"}]
    for second in (5, 10, 15, 20):
        held = looked(held, Trigger.GOOD, later(second))
    assert (held.state, held.good_looks) == ("holding", 0)
    assert services.tick(held, later(3600)).state == "holding"
    for second in (7201, 7206, 7211):
        held = looked(held, Trigger.GOOD, later(second))
    assert held.state == "step"


def test_an_aborting_freeze_aborts_a_running_delivery(canary):
    freeze(later(-60), later(7200), behaviour="abort")
    done = services.tick(canary, NOW)
    assert (done.state, done.what, done.share) == ("aborted", "abort", 0.0)


def test_an_aborting_freeze_spares_deliveries_that_wait_for_a_person(canary):
    paused = services.pause(canary, OTTO)
    Delivery.objects.filter(pk=paused.pk).update(state_at=NOW)
    freeze(later(-60), later(7200), behaviour="abort")
    assert services.tick(selectors.delivery(paused.pk), NOW).state == "paused"


def test_an_aborting_freeze_also_aborts_during_a_block_of_live(switchback):
    freeze(later(-60), later(7200), behaviour="abort")
    live = next(block for block, share in enumerate(switchback.blocks) if not share)
    done = services.tick(at(switchback, State.STEP, block=live, share=0.0), NOW)
    assert done.state == "aborted"


def test_time_in_a_freeze_does_not_count_as_an_error(canary):
    freeze(later(-60), later(3600))
    held = services.tick(canary, NOW)
    assert services.tick(held, later(3601)).state == "holding"
    held = looked(selectors.delivery(held.pk), Trigger.HOLD, later(3605), holds=ERROR)
    assert services.tick(held, later(4204)).state == "holding"
    assert services.tick(held, later(4206)).why == "held for 10 min: tallies are 20 s old"


def test_an_error_that_lasts_into_a_freeze_counts_from_its_end(canary):
    held = looked(canary, Trigger.HOLD, holds=ERROR)
    freeze(later(300), later(3600))
    frozen = services.tick(held, later(305))
    assert [hold.code for hold in frozen.why_held] == ["tallies", "freeze"]
    frozen = looked(frozen, Trigger.HOLD, later(310), holds=ERROR)
    assert services.tick(frozen, later(3601)).state == "holding"
    held = looked(frozen, Trigger.HOLD, later(3605), holds=ERROR)
    assert [hold.code for hold in held.why_held] == ["tallies"]
    assert services.tick(held, later(4204)).state == "holding"
    assert services.tick(held, later(4206)).state == "paused"


def test_a_shadow_continues_in_a_freeze_and_does_not_pass(redis_away, policy, pool):
    made = at(proposed(policy, SHADOW, CANARY, FULL), State.STEP, step=0, shadow=1.0, clock_at=NOW)
    freeze(later(-60), later(7200))
    assert services.tick(made, NOW).state == "step"
    held = looked(made, Trigger.PASS, later(70))
    assert (held.state, held.step, held.shadow) == ("step", 0, 1.0)
    assert looked(held, Trigger.PASS, later(7201)).step == 1


def test_the_judge_looks_at_steps_holds_and_bakes() -> None:
    assert {State.STEP, State.HOLDING, State.BAKING} == judging.WATCHED
