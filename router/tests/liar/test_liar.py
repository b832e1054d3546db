"""Whatever an engine answers, each request has one true outcome, and no other client pays for it."""

import importlib
import inspect
from typing import Any

import pytest

from router.tests.liar import mutations, plans
from router.tests.liar.machine import LATE_S, LiarMachine
from router.tests.liar.offload_machine import OffloadMachine
from router.tests.liar.plans import Plan
from router.tests.liar.stage import Stage
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)
STEPS = 8


@pytest.mark.parametrize(("machine", "programs"), [(LiarMachine, 28), (OffloadMachine, 12)])
def test_no_lie_of_an_engine_is_taken_for_the_truth_or_paid_for_by_others(
    stage: Stage, machine: type[LiarMachine], programs: int
) -> None:
    try_schedules(lambda: machine(stage), programs, steps=STEPS)


@pytest.mark.parametrize("lie", [Plan(status=503), Plan(end="stays", at=-1), Plan(status=500)])
def test_an_instance_that_one_key_shut_out_serves_others_when_the_last_instance_fails(stage: Stage, lie: Plan) -> None:
    machine = LiarMachine(stage)
    machine.begins(goods=1, liars=1)
    machine.a_page_says("liar-0", "true")
    machine.time_passes(1)
    machine.asks(plans.CHAT, (None, None), "alice", plans.GOOD, None)
    machine.poisons(plans.CHAT, (None, None), Plan(status=500), 8)
    assert stage.here.endpoints["good-0"].breaker.state == "open"
    machine.asks(plans.COMPLETIONS, (None, None), "alice", lie, None)
    machine.time_passes(LATE_S + 1)
    machine.teardown()


def test_a_whole_answer_in_place_of_a_stream_is_charged_by_its_events_if_it_has_no_usage(stage: Stage) -> None:
    machine = LiarMachine(stage)
    machine.begins(goods=1, liars=1)
    events = ("begin", *["text"] * 40, "finish", "end")
    for path in plans.STREAMED[:2] * 2:
        machine.asks(path, (True, None), "bob", Plan(events=events, framing="length"), None)
    machine.teardown()


@pytest.mark.parametrize("status", [400, 503])
def test_a_refusal_without_a_body_counts_even_if_the_connection_then_closes(stage: Stage, status: int) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="mooncake_p2p", decoder="decode")
    for _ in range(4):
        machine.asks(plans.CHAT, (True, True), "alice", Plan(status=status, end="closes", at=0, framing="close"), None)
    machine.teardown()


def test_a_decoder_that_answers_after_its_error_may_have_served_the_prefills_request(stage: Stage) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="neuron", decoder="decode")
    lie = Plan(events=("begin", "error_named", *plans.HONEST[1:]), framing="close", piece=1, slow=True)
    for _ in range(4):
        machine.asks(plans.COMPLETIONS, (True, True), "alice", lie, None)
    machine.teardown()


def test_an_engine_confirmed_by_another_is_not_shut_out_by_bad_requests(stage: Stage) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="sglang", decoder="both")
    machine.asks(plans.CHAT, (True, True), "alice", plans.GOOD, None)
    machine.poisons(plans.EMBEDDINGS, (True, True), Plan(status=400), 12)
    machine.asks(plans.CHAT, (True, True), "alice", plans.GOOD, None)
    for _ in range(4):
        machine.poisons(plans.CHAT, (True, True), Plan(status=400), 1)
        machine.good_engines_take_requests()
    machine.teardown()


def test_a_requests_tokens_are_its_decoders_whichever_half_came_first(stage: Stage) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="sglang", decoder="both")
    machine.poisons(plans.CHAT, (True, True), Plan(end="closes", at=-1), 1)
    machine.asks_often(plans.CHAT, (None, True), Plan(usages=(("9", None), (9, 3))), 10)
    machine.teardown()


def test_an_engine_that_has_computed_a_prompt_counts_as_serving_while_the_other_half_runs(stage: Stage) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="nixl", decoder="decode")
    machine.poisons(plans.CHAT, (True, None), Plan(status=500), 6)
    for _ in range(3):
        machine.asks(plans.CHAT, (True, None), "alice", Plan(end="holds", at=2), None)
    assert machine.open
    machine.poisons(plans.CHAT, (True, None), Plan(status=500), 4)
    machine.teardown()


@pytest.mark.parametrize("status", [401, 500])
def test_a_request_during_which_an_engine_died_is_retried_once_unless_a_key_was_missing(
    stage: Stage, status: int
) -> None:
    machine = LiarMachine(stage)
    machine.begins(goods=2, liars=2)
    machine.asks_often(plans.MESSAGES, (True, None), Plan(end="resets", at=-1, then=Plan(status=status)), 10)
    machine.teardown()


def test_a_request_that_failed_twice_on_an_engine_is_forgiven_once(stage: Stage) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="mooncake_p2p", decoder="decode")
    machine.poisons(plans.EMBEDDINGS, (True, True), Plan(status=500), 1)
    machine.poisons(plans.CHAT, (True, True), Plan(status=500), 12)
    machine.teardown()


class Alike:
    """A patch without effect that checks that the replacement has the original's signature."""

    def setattr(self, target: Any, name: Any, value: Any = None) -> None:
        if isinstance(target, str):
            (module, _, name), value = target.rpartition("."), name
            target = importlib.import_module(module)
        replaced = getattr(target, name)
        if inspect.isfunction(replaced):
            needed, taken = inspect.signature(replaced).parameters, inspect.signature(value)
            by_name = {one.name: 0 for one in needed.values() if one.kind is one.KEYWORD_ONLY}
            taken.bind(*[0] * (len(needed) - len(by_name)), **by_name)


@pytest.mark.parametrize("name", mutations.ALL)
def test_a_mutation_is_named_after_the_fix_that_it_removes(name: str) -> None:
    mutations.ALL[name](Alike())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "number", "programs"), [(LiarMachine, 1, 120), (OffloadMachine, 2, 60)])
def test_no_lie_is_believed_or_charged_to_others(
    stage: Stage, machine: type[LiarMachine], number: int, programs: int
) -> None:
    try_schedules(lambda: machine(stage), programs * TIMES, number, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(mutations.MUTATIONS if TIMES > 1 else mutations.MUTATIONS.keys() - mutations.RARE)
)
def test_without_a_fix_a_lie_is_believed_or_paid_for_by_others(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.MUTATIONS[name](monkeypatch)
    assert schedules_until_broken(lambda: LiarMachine(stage), 600 * TIMES, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.OFFLOADS)
def test_without_a_fix_an_offload_is_lost_or_never_ends(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.OFFLOADS[name](monkeypatch)
    assert schedules_until_broken(lambda: OffloadMachine(stage), 600 * TIMES, STEPS)


@pytest.mark.parametrize("path", plans.STREAMED)
@pytest.mark.parametrize("told", [((10**12, 10**12), (0, 0)), ((9, 0),)])
def test_a_stream_whose_engine_reports_no_tokens_is_charged_by_its_events(
    stage: Stage, path: str, told: tuple[plans.Usage, ...]
) -> None:
    machine = LiarMachine(stage)
    machine.begins(goods=0, liars=1)
    events = ("begin", *["text"] * 40, "finish", "usage", "end")
    machine.asks(path, (True, True), "bob", Plan(events=events, usages=told), None)
    asked = stage.asked[max(stage.asked)]
    assert asked.outcomes[0]["result"] == "served"
    assert asked.charged is not None
    assert asked.charged >= 40
    machine.teardown()


def test_a_stream_of_more_events_than_reported_tokens_is_charged_as_reported(stage: Stage) -> None:
    machine = OffloadMachine(stage)
    machine.begins(connector="mooncake_p2p", decoder="decode")
    events = (*["decoy"] * 10, "begin", "text", "begin", "text", "finish", "usage", "end")
    machine.asks("/v1/messages", (True, True), "bob", Plan(events=events, end="whole", at=0), None)
    machine.teardown()
