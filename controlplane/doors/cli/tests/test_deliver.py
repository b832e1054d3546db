"""`weir deliver` in a pipeline: exit statuses, repetition, waiting, and interruption."""

import json
import re
import urllib.error
from pathlib import Path

import pytest

from controlplane.doors.cli.weir import deliveries
from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries import services, states
from controlplane.traffic.deliveries.foresight.tests.receipts import WARM_IN_A_MINUTE, fill
from controlplane.traffic.deliveries.models import Delivery, Freeze
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.deliveries.timing import freezing
from controlplane.traffic.policies import selectors

pytestmark = pytest.mark.django_db
ADA = Actor("user", "ada", is_admin=True)
WHY = "less prefill on warm instances"
STEPS = {"steps": [{"mode": "canary", "share": 0.05, "for_s": 60}, {"mode": "full", "bake_s": 600}]}
ROOT = Path(__file__).parents[4]


@pytest.fixture
def file(default_file, demo):
    return default_file(classes__heavy_new_tokens=12_000)


@pytest.fixture
def plan(tmp_path):
    def write(**more):
        (tmp_path / "plan.json").write_text(json.dumps({**STEPS, **more}))
        return tmp_path / "plan.json"

    return write


@pytest.fixture
def passing(monkeypatch):
    """The changes that happen while the command sleeps, one per second."""
    things = []
    monkeypatch.setattr(deliveries.time, "sleep", lambda _: things.pop(0)() if things else pytest.fail("it waits on"))
    return things


def moves(what, by, actor=ADA):
    return lambda: move(Delivery.objects.get(), TransitionRequest(what, by, actor, WHY))


ARMED, PASSED = moves(Trigger.ARMED, Origin.SYSTEM), moves(Trigger.PASS, Origin.JUDGE)
ENDS = [
    (0, "delivered", [ARMED, PASSED, moves(Trigger.DELIVER, Origin.SYSTEM)]),
    (1, "ended by a guard or a router", [ARMED, moves(Trigger.FAIL, Origin.JUDGE)]),
    (1, "ended by a person", [ARMED, moves(Trigger.ABORT, Origin.PERSON)]),
    (2, "needs a person", [ARMED, moves(Trigger.PAUSE, Origin.JUDGE)]),
]


@pytest.mark.parametrize(("status", "said", "things"), ENDS)
def test_the_exit_status_is_the_outcome_and_a_repetition_has_the_same(run, file, plan, passing, status, said, things):
    passing.extend(things)
    words = ("deliver", file, "--plan", plan(), "--reason", WHY, "--wait")
    got, told, error = run(*words)
    assert (got, passing) == (status, []), error
    assert f"delivery {Delivery.objects.get().pk}: {said}" in told.splitlines()[-1]
    assert run(*words)[0] == status
    assert Delivery.objects.count() == 1


def test_a_delivered_file_gets_its_number_and_then_counts_as_live(run, file, plan, passing):
    passing.extend(ENDS[0][2])
    assert run("deliver", file, "--plan", plan(), "--wait")[0] == 0
    assert json.loads(file.read_text())["version"] == 2
    assert run("deliver", file, "--wait")[0] == 0
    document = json.loads(file.read_text())["document"]
    file.write_text(json.dumps(document))
    assert run("deliver", file, "--policy", "default", "--wait")[0] == 0
    assert Delivery.objects.count() == 1


def test_a_document_that_went_live_without_a_delivery_counts_as_live(run, default_file, demo):
    assert run("deliver", default_file(), "--wait")[:2] == (0, "default: v1 is live with this document: already live\n")
    assert not Delivery.objects.exists()


def test_without_waiting_the_delivery_is_started_and_its_number_printed(run, file, plan):
    status, told, error = run("deliver", file, "--plan", plan(), "--reason", WHY)
    made = Delivery.objects.get()
    assert (status, made.state, made.reason) == (0, State.ARMING, WHY), error
    assert told.splitlines()[0] == f"delivery {made.pk}: http://weir.test/deliveries/{made.pk}"
    assert run("deliver", file, "--plan", plan(), "--reason", WHY)[0] == 0
    assert Delivery.objects.count() == 1


def test_a_plan_that_needs_approvals_is_started_once_it_has_them(run, file, plan, passing):
    passing.append(lambda: services.approve(Delivery.objects.get(), ADA))
    passing.append(lambda: None)
    passing.extend(ENDS[1][2])
    status, told, error = run("deliver", file, "--plan", plan(approvals={"needed": 1}), "--wait")
    assert (status, passing) == (1, []), error
    states = [re.search(r"v2: (\w+)", line)[1] for line in told.splitlines()[1:-1]]
    assert states == ["proposed", "arming", "step", "aborted"]


def test_options_of_the_command_replace_times_and_pools_of_the_plan(run, file, plan):
    status, _, error = run("deliver", file, "--plan", plan(), "--at", "2099-08-03T03:00", "--pool", "demo")
    made = Delivery.objects.get()
    assert (status, made.state, made.plan["start"]["zone"], made.plan["pools"]) == (0, "ready", "UTC", ["demo"]), error
    status, told, _ = run("deliver", "wait", made.pk, "--timeout", 0)
    assert (status, told.splitlines()[-1]) == (2, f"delivery {made.pk}: not ended after 0 s; it continues")


def test_the_command_waits_for_a_freeze_to_end(run, file, plan, passing, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(deliveries.time, "monotonic", lambda: now[0])
    row = Freeze.objects.create(
        name="night", start="2020-01-01T00:00", end="2099-01-01T00:00", zone="UTC", reason=WHY, created_by="ada"
    )

    def lifted():
        freezing.remove_freeze(row, ADA)
        now[0] += deliveries.START_EVERY_S

    passing.extend([lifted, *ENDS[1][2]])
    status, told, error = run("deliver", file, "--plan", plan(), "--wait", "--timeout", 1000)
    assert (status, passing) == (1, []), error
    assert "ready, step 1 of 2: 409 Conflict: the freeze night is in force" in told


def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(run, file, plan):
    status, told, error = run("deliver", file, "--plan", plan(), "--dry-run")
    assert (status, told.splitlines()[0]) == (0, "default: v1 → v2 would be ready"), error
    assert told.splitlines()[1].startswith("  what it can show, no recent traffic of demo: ")
    document = json.loads(file.read_text())
    document["document"]["strategy"]["name"] = "bogus"
    file.write_text(json.dumps(document))
    for words in (("deliver", file), ("policy", "apply", file), ("policy", "apply", file, "--deliver")):
        status, _, error = run(*words, "--dry-run")
        assert (status, 'strategy.name: "bogus"' in error) == (3, True), error
    assert not Delivery.objects.exists()
    assert selectors.open_draft(selectors.policy("default")) is None


@pytest.mark.parametrize("words", [("deliver", "FILE"), ("policy", "apply", "FILE", "--deliver")])
def test_a_dry_run_predicts_what_the_plan_can_show(run, file, plan, live_redis, words):
    fill(live_redis)
    status, told, error = run(*[file if word == "FILE" else word for word in words], "--plan", plan(), "--dry-run")
    assert (status, f"  {WARM_IN_A_MINUTE}" in told.splitlines()) == (0, True), error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["deliver", "FILE", "--reason", "short"], "reason"),
        (["deliver", "FILE", "--at", "soon"], "plan.start"),
        (["deliver", "FILE", "--pool", "nothing"], "plan.pools"),
        (["deliver", "FILE", "--policy", "nothing"], "there is no policy nothing"),
        (["deliver", "FILE", "--emergency", "everything burns now"], "admin"),
        (["deliver", "status"], "name a delivery by its id"),
        (["deliver", "status", "1", "--policy", "default"], "name a delivery by its id"),
        (["deliver", "status", "--policy", "default"], "has had no delivery"),
        (["deliver", "abort", "77"], "there is no delivery 77"),
        (["deliver", "missing.json"], "No such file"),
        (["deliver"], "required: file"),
    ],
)
def test_a_refusal_ends_with_status_3_and_its_reason(run, file, words, error):
    status, _, told = run(*(file if word == "FILE" else word for word in words))
    assert (status, error in told) == (3, True), told
    assert not Delivery.objects.exists()


def test_a_delivery_is_paused_resumed_advanced_and_aborted(run, file, plan):
    assert run("deliver", file, "--plan", plan())[0] == 0
    number = Delivery.objects.get().pk
    ARMED()
    assert run("deliver", "status", number)[0] == 0
    assert run("deliver", "pause", "--policy", "default", "--reason", WHY)[0] == 0
    assert run("deliver", "status", number)[0] == 2
    assert run("deliver", "resume", number, "--reason", WHY)[0] == 0
    ARMED()
    assert json.loads(run("deliver", "status", number, "--json")[1])["state"] == "step"
    assert run("deliver", "abort", number)[0] == 0
    assert run("deliver", "status", number)[0] == 1
    assert run("deliver", "abort", number)[:2] == (0, f"delivery {number} is aborted: nothing to abort\n")
    assert run("deliver", "resume", number, "--reason", WHY)[0] == 3


@pytest.mark.parametrize(("flags", "state"), [([], State.STEP), (["--abort-on-exit"], State.ABORTED)])
def test_a_paused_delivery_continues_or_is_aborted(run, file, plan, passing, flags, state):
    def stop():
        raise KeyboardInterrupt

    passing.extend([ARMED, stop])
    status, _, error = run("deliver", file, "--plan", plan(), "--wait", *flags)
    made = Delivery.objects.get()
    assert (status, made.state) == (3, state)
    says = "aborted" if flags else f"continues: weir deliver wait {made.pk}, or weir deliver abort {made.pk}"
    assert says in error


def test_a_wait_continues_while_the_control_plane_is_unreachable(run, file, plan, passing, network):
    _, faults = network
    passing.append(lambda: faults.append(urllib.error.URLError("connection refused")))
    passing.extend([lambda: None, ARMED, moves(Trigger.FAIL, Origin.JUDGE)])
    status, _, error = run("deliver", file, "--plan", plan(), "--wait")
    assert (status, "trying again" in error) == (1, True), error


def test_the_results_are_printed(run, file, plan, passing, tmp_path):
    passing.extend(ENDS[1][2])
    assert run("deliver", file, "--plan", plan(), "--wait", "--results", tmp_path / "delivery.json")[0] == 1
    assert json.loads((tmp_path / "delivery.json").read_text())["outcome"] == "guard"


def test_every_outcome_has_one_status_in_both_commands_and_in_the_docs():
    assert deliveries.OUTCOMES.keys() == deliveries.WORDS.keys() == set(states.WORDS.values())
    rows = re.findall(
        r"^\| `(\w+)` \| .+ \| (\d) \| (\d) \|$", (ROOT / "docs" / "delivery.md").read_text(), re.MULTILINE
    )
    known = {word: (deliveries.OUTCOMES[word], status) for status, word in states.WORDS.items()}
    assert {word: (int(own), int(manage)) for word, own, manage in rows} == {**known, "refused": (3, states.REFUSED)}
