"""`manage.py deliver`: proposes, starts and waits; its exit status says how the delivery ended."""

import json

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from controlplane.management.commands import deliver
from controlplane.traffic.deliveries import moving, selectors, services, states
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import TransitionRequest
from controlplane.traffic.deliveries.states import (
    CLOSED,
    DELIVERED,
    GUARD,
    NEEDS_PERSON,
    PERSON,
    REFUSED,
    TABLE,
    TIME,
    Origin,
    State,
    Trigger,
)
from controlplane.traffic.deliveries.tests.conftest import ADA, CANARY, FULL, OTTO, WHY, proposed
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.tests.conftest import edit
from router.policy.schema import document as documents

CHANGED = documents.apply_overrides(documents.default(), {"classes.heavy_new_tokens": 9000})

pytestmark = pytest.mark.usefixtures("redis_away", "pool")


@pytest.fixture(autouse=True)
def _one_connection(monkeypatch):
    """A test is one transaction, so everything uses one connection."""
    monkeypatch.setattr(deliver, "close_old_connections", lambda: None)


@pytest.fixture
def files(tmp_path):
    """Writes a document and a plan; returns their paths as options."""

    def write(document=CHANGED, plan=None, **more):
        (tmp_path / "policy.json").write_text(json.dumps(document))
        options = {"file": str(tmp_path / "policy.json"), "reason": WHY, **more}
        if plan is not None:
            (tmp_path / "plan.yaml").write_text(json.dumps(plan))
            options["plan"] = str(tmp_path / "plan.yaml")
        return options

    return write


@pytest.fixture
def passing(monkeypatch):
    """The changes made while the command sleeps, one per second."""
    things = []
    monkeypatch.setattr(deliver.time, "sleep", lambda _: things.pop(0)() if things else None)
    return things


def run(*words, **options):
    """Return the exit status."""
    try:
        call_command("deliver", *words, **options)
    except CommandError as error:
        return error.returncode
    except SystemExit as end:
        return end.code
    return 0


def moves(what, by, actor=OTTO, **more):
    return lambda: moving.move(
        selectors.delivery(Delivery.objects.get().pk), TransitionRequest(what, by, actor, WHY, **more)
    )


def test_a_document_is_proposed_and_started(files, capsys) -> None:
    assert run("default", **files(plan={"steps": [CANARY, FULL]})) == 0
    made = Delivery.objects.get()
    assert (made.state, made.candidate.document, made.reason) == (State.ARMING, CHANGED, WHY)
    assert made.proposed_by.endswith("(manage.py)")
    assert [step["mode"] for step in made.plan["steps"]] == ["canary", "full"]
    told = capsys.readouterr().out
    assert "policy default v2: arming, step 1 of 2" in told
    assert "  what it can show, no recent traffic of demo" in told


def test_without_a_plan_the_default_is_taken(files) -> None:
    assert run("default", **files()) == 0
    assert len(Delivery.objects.get().plan["steps"]) == 4


STARTED = [moves(Trigger.ARMED, Origin.SYSTEM)]
ENDS = [
    (GUARD, [*STARTED, moves(Trigger.FAIL, Origin.JUDGE)]),
    (GUARD, [*STARTED, moves(Trigger.TRIP, Origin.ROUTER)]),
    (GUARD, [*STARTED, moves(Trigger.PASS, Origin.JUDGE), moves(Trigger.FAIL, Origin.JUDGE)]),  # during the bake
    (PERSON, [*STARTED, moves(Trigger.ABORT, Origin.PERSON)]),
    (PERSON, [*STARTED, moves(Trigger.OVERTAKE, Origin.PERSON)]),
    (NEEDS_PERSON, [*STARTED, moves(Trigger.PAUSE, Origin.JUDGE)]),
    (NEEDS_PERSON, [moves(Trigger.LATE, Origin.SYSTEM)]),
    (DELIVERED, [*STARTED, moves(Trigger.PASS, Origin.JUDGE), moves(Trigger.DELIVER, Origin.SYSTEM)]),
]


@pytest.mark.parametrize(("code", "things"), ENDS)
def test_the_exit_status_is_the_outcome(files, passing, code, things, capsys) -> None:
    passing.extend(things)
    assert run("default", wait=True, **files(plan={"steps": [CANARY, FULL]})) == code
    assert states.MEANING[code] in capsys.readouterr().out
    assert not passing


def test_a_plan_without_the_step_full_succeeds(files, passing) -> None:
    passing.extend([*STARTED, moves(Trigger.PASS, Origin.JUDGE)])
    assert run("default", wait=True, **files(plan={"steps": [CANARY]})) == DELIVERED


def test_a_step_that_asks_for_approval_needs_a_person(files, passing) -> None:
    passing.extend([*STARTED, moves(Trigger.PASS, Origin.JUDGE)])
    assert run("default", wait=True, **files(plan={"steps": [{**CANARY, "then": "ask"}, FULL]})) == NEEDS_PERSON


def test_a_delivery_that_needs_approval_needs_a_person_and_can_be_waited_for_again(files, passing) -> None:
    plan = {"steps": [CANARY, FULL], "approvals": {"needed": 1}}
    assert run("default", wait=True, **files(plan=plan)) == NEEDS_PERSON
    services.approve(Delivery.objects.get(), ADA)
    passing.extend([*STARTED, moves(Trigger.ABORT, Origin.PERSON)])
    assert run("default", wait=True) == PERSON


def test_a_wait_has_a_time_limit_and_the_delivery_continues(files, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(deliver.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(deliver.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert run("default", wait=True, timeout=30.0, **files()) == TIME
    assert Delivery.objects.get().is_open


def test_a_database_that_is_unreachable_for_a_while_ends_nothing(files, passing, monkeypatch, capsys) -> None:
    real, fails = selectors.delivery, [OperationalError("gone")]

    def once(pk):
        if fails:
            raise fails.pop()
        return real(pk)

    monkeypatch.setattr(deliver.selectors, "delivery", once)
    monkeypatch.setattr(deliver, "close_old_connections", lambda: None)  # the connections hold the test's transaction
    passing.extend([lambda: None, *STARTED, moves(Trigger.ABORT, Origin.PERSON)])
    assert run("default", wait=True, **files()) == PERSON
    assert "the database does not answer: gone" in capsys.readouterr().err


def test_the_live_document_counts_as_delivered(files, capsys) -> None:
    assert run("default", wait=True, **files(documents.default())) == 0
    assert "holds this document" in capsys.readouterr().out
    assert not Delivery.objects.exists()


REFUSALS = [
    ({"document": {"classes": {"heavy_new_tokens": "x"}}}, "classes.heavy_new_tokens"),
    ({"plan": {"steps": []}}, r"plan\.steps"),
    ({"reason": "short"}, "reason"),
]


@pytest.mark.parametrize(("given", "said"), REFUSALS)
def test_a_refused_document_leaves_no_draft(policy, files, given, said) -> None:
    with pytest.raises(CommandError, match=said) as raised:
        call_command("deliver", "default", **files(**given))
    assert raised.value.returncode == REFUSED
    assert policies.open_draft(policy) is None


def test_a_persons_draft_is_not_overwritten(policy, files) -> None:
    edit(policy, OTTO, heavy_new_tokens=8000)
    with pytest.raises(CommandError, match="otto has a draft of default open") as raised:
        call_command("deliver", "default", **files())
    assert raised.value.returncode == REFUSED
    assert policies.open_draft(policy).upgraded["classes"]["heavy_new_tokens"] == 8000


def test_a_second_delivery_is_refused(policy, files) -> None:
    proposed(policy, tokens=8000)
    assert run("default", **files()) == REFUSED
    assert policies.open_draft(policy) is None


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ((), {}, "name a policy"),
        (("gone",), {}, "there is no policy gone"),
        (("default",), {}, "no open delivery; name a --file"),
        (("default",), {"file": "/nowhere.json", "reason": WHY}, "No such file"),
        (("default",), {"file": "/dev/null", "reason": WHY}, "cannot be read"),
    ],
)
def test_missing_input_is_named(policy, words, options, said) -> None:
    with pytest.raises(CommandError, match=said) as raised:
        call_command("deliver", *words, **options)
    assert raised.value.returncode == REFUSED


def test_stop_through_djangos_manage_py_prints_the_same(capsys) -> None:
    assert run(stop="chat") == 1
    assert "Redis does not answer" in capsys.readouterr().err


def test_every_state_has_a_status_or_continues() -> None:
    for state in State:
        for what in Trigger:
            found = states.status(state, what)
            assert (found is None) == (
                state not in CLOSED and state not in (State.PROPOSED, State.WAITING, State.PAUSED)
            )
            assert found is None or found in states.MEANING
    assert all(rule.what in Trigger for rule in TABLE.values())
