"""The server's record of each command that changes something: the person, the reason and the value."""

import argparse
import getpass
import json
from pathlib import Path

import pytest
from django.core.management import call_command

from controlplane.doors.cli.tests.test_weir import TUNE, experiment, tuned  # noqa: F401  (a fixture)
from controlplane.doors.cli.weir.main import parser
from controlplane.pages.fleet_ops.management.commands import calibrate
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import SYSTEM
from controlplane.testing import api_caller
from controlplane.traffic.batches import store
from controlplane.traffic.batches.models import Batch
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.deliveries.tests.conftest import CANARY
from controlplane.traffic.keys.services import KeyTerms, create_key
from fleet.models import Instance
from fleet.tests.profiling.standin import interpreter

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[4]
WHY = "asked for by the pipeline"
BY_TOKEN = "ci (otto)"
BY_PROCESS = f"{getpass.getuser()} (manage.py)"
READS = {
    "batch list", "budget list", "deliver status", "deliver wait", "experiment wait", "explain", "fleet discover",
    "models get", "policy diff", "policy export",
}  # fmt: skip
CANARY_OF_HALF = {**CANARY, "share": 0.5}
MANAGE_READS = {"doctor", "explain", "openapi_export", "fleet_export", "fleet_render", "fleet_status"}
# These commands run or end processes, and change no stored data.
MANAGE_RUNS = {"up", "node", "serve", "demo_traffic", "fleet_stop_all"}
kept_of, manage_kept_of = set(), set()


def keeps(*names, of=kept_of):
    """The commands whose audit record the test checks."""

    def mark(test):
        of.update(names)
        return test

    return mark


def last(action):
    """Return (who, why, value) of the newest entry of the action."""
    entry = AuditEntry.objects.filter(action=action).first()
    assert entry is not None, f"nothing was kept of {action}"
    return entry.actor_name, entry.reason, entry.after


def leaves(parser, words=""):
    """The commands of a parser, as users type them."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not groups:
        return {words}
    return set().union(*(leaves(each, f"{words} {name}".strip()) for name, each in groups[0].choices.items()))


def test_every_command_of_weir_that_changes_something_has_a_test_here():
    assert kept_of | READS == leaves(parser())
    assert not kept_of & READS


def test_every_management_command_that_changes_something_has_a_test_here():
    own = {
        path.stem for top in ("controlplane", "fleet") for path in (ROOT / top).glob("**/management/commands/[a-z]*.py")
    }
    assert own == manage_kept_of | MANAGE_READS | MANAGE_RUNS


@pytest.fixture
def fleet_file(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "apiVersion: weir/v1\nkind: Fleet\nmetadata: {name: f}\nspec:\n  pools:\n"
        "  - {name: night, model: llama-3.1-8b, kind: sim, replicas: 1}\n"
    )
    return path


@keeps("fleet apply")
def test_a_fleet_document_is_recorded_with_its_reason(run, ada, fleet_file, monkeypatch):
    monkeypatch.setenv("WEIR_TOKEN", api_caller(ada).token)
    assert run("fleet", "apply", fleet_file, "--reason", WHY)[0] == 0
    who, why, value = last("fleet.applied")
    assert (who, why) == ("ci (ada)", WHY)
    assert [pool["name"] for pool in value["spec"]["pools"]] == ["night"]


@keeps("policy apply")
def test_a_published_document_is_recorded_with_its_reason(run, default_file):
    assert run("policy", "apply", default_file(classes__heavy_new_tokens=12_000), "--reason", WHY)[0] == 0
    who, why, value = last("policy.publish")
    assert (who, why, value["classes"]["heavy_new_tokens"]) == (BY_TOKEN, WHY, 12_000)


@keeps("profile")
def test_a_new_profile_is_recorded_with_its_layout(run, tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_PROFILES_PYTHON", interpreter(tmp_path))
    status, told = run("profile", "acme/Model-7B", "--gpu", "h200_sxm", "--tp", "2", "-o", tmp_path / "made.json")[:2]
    assert (status, "expected of a warm engine (dense): TPOT 14 %" in told) == (0, True)
    assert json.loads((tmp_path / "made.json").read_text())["gpu"] == "h200_sxm"
    who, _, value = last("profile.make")
    assert (who, value["layout"]) == (BY_TOKEN, "tp 2")


@keeps("models apply", "models rollback")
def test_each_version_of_the_document_models_is_recorded_with_its_reason(run, demo, tmp_path):
    for number in (1, 2):
        (tmp_path / "models.json").write_text(json.dumps({"schema": 1, "models": {f"chat-{number}": {"pool": "demo"}}}))
        assert run("models", "apply", tmp_path / "models.json", "--reason", WHY)[0] == 0
        assert last("models.publish")[:2] == (BY_TOKEN, WHY)
    assert run("models", "rollback", "1", "--reason", WHY)[0] == 0
    who, why, value = last("models.rollback")
    assert (who, why, list(value["models"])) == (BY_TOKEN, WHY, ["chat-1"])


@keeps("budget set", "budget delete", "batch get", "batch cancel")
def test_changes_of_budgets_and_batches_are_recorded(run, ada, demo, data_dir, monkeypatch):
    monkeypatch.setenv("WEIR_TOKEN", api_caller(ada).token)
    budget = ("--pool=demo", "--unit", "tokens", "--per", "month")
    assert run("budget", "set", *budget, "--limit", "5000")[0] == 0
    who, _, value = last("budget.create")
    assert (who, value["limit"]) == ("ci (ada)", 5_000)
    assert run("budget", "delete", *budget)[0] == 0
    assert last("budget.delete")[0] == "ci (ada)"
    key, _ = create_key("ci", KeyTerms(), SYSTEM)
    row = Batch.objects.create(key=key, api_path="/v1/completions", window_s=3600, input_file="f", output_file="file-o")
    store.content("file-o").write_bytes(b"{}\n")
    for verb, action in (("get", "batch.download"), ("cancel", "batch.cancel")):
        assert run("batch", verb, row.name)[0] == 0
        assert last(action)[0] == "ci (ada)"


@keeps("deliver", "deliver pause", "deliver resume", "deliver advance", "deliver abort")
def test_each_action_on_a_delivery_is_recorded_with_its_reason(run, default_file, demo, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({"steps": [{**CANARY, "then": "ask"}, CANARY_OF_HALF]}))
    path = default_file(classes__heavy_new_tokens=12_000)
    assert run("deliver", path, "--plan", tmp_path / "plan.json", "--reason", WHY)[0] == 0
    who, why, value = last("delivery.propose")
    assert (who, why, value["document"]["classes"]["heavy_new_tokens"]) == (BY_TOKEN, WHY, 12_000)
    assert last("delivery.start")[:2] == (BY_TOKEN, WHY)
    number = str(Delivery.objects.get().pk)
    for verb in ("pause", "resume", "advance", "abort"):
        if Delivery.objects.get().state == State.ARMING:
            move(Delivery.objects.get(), TransitionRequest(Trigger.ARMED, Origin.SYSTEM, SYSTEM, WHY))
        if verb == "pause":
            move(Delivery.objects.get(), TransitionRequest(Trigger.PASS, Origin.JUDGE, SYSTEM, WHY))
        status, _, error = run("deliver", verb, number, "--reason", f"{verb}: {WHY}")
        assert status == 0, error
        who, why, value = last(f"delivery.{verb}")
        assert (who, why) == (BY_TOKEN, f"{verb}: {WHY}")
        assert value["state"] == Delivery.objects.get().state


@keeps("experiment run")
def test_an_experiment_is_recorded_as_requested(run, demo, tmp_path, data_dir, sent):
    path = experiment(tmp_path, [], question="does the seed matter?")
    assert run("experiment", "run", path)[0] == 0
    who, _, value = last("experiment.start")
    assert (who, value["question"]) == (BY_TOKEN, "does the seed matter?")


@keeps("preview")
def test_a_preview_is_recorded_with_its_trace(run, tuned, default_file, sent):  # noqa: F811
    path = default_file(classes__heavy_new_tokens=12_000)
    run("preview", path, "--trace", "agentic-demo", "--timeout", 0)
    who, _, value = last("preview.start")
    assert (who, value["trace_name"]) == (BY_TOKEN, "agentic-demo")


@keeps("tune")
def test_a_tuning_and_its_draft_are_recorded(run, tuned):  # noqa: F811
    words = (*TUNE, "--bound", "classes.heavy_new_tokens=8000:60000:500", "--draft", "balanced")
    status, _, error = run(*words)
    assert status == 0, error
    who, _, value = last("tuning.start")
    assert (who, value["space"][0]["path"]) == (BY_TOKEN, "classes.heavy_new_tokens")
    assert last("tuning.draft")[0] == BY_TOKEN


@keeps("fleet_apply", of=manage_kept_of)
def test_manage_fleet_apply_records_its_reason(default_policy, fleet_file):
    call_command("fleet_apply", str(fleet_file), reason=WHY)
    who, why, value = last("fleet.applied")
    assert (who, why, value["spec"]["pools"][0]["name"]) == (BY_PROCESS, WHY, "night")


@keeps("calibrate", of=manage_kept_of)
def test_manage_calibrate_records_its_reason(demo, monkeypatch):
    Instance.objects.create(pool=demo, ordinal=0, node="local", state="ready")
    monkeypatch.setattr(calibrate.actions.calibrations, "ask_for", lambda name, *more, **options: name)
    asked = calibrate.Command()._ask("demo-0", WHY, 30.0, anyway=False, source="sweep")
    assert (asked, last("instance.calibrate")) == ("demo-0", (BY_PROCESS, WHY, {"seconds": 30.0, "source": "sweep"}))


@keeps("sign_in_link", of=manage_kept_of)
def test_manage_sign_in_link_is_recorded(otto):
    call_command("sign_in_link", "otto")
    assert last("user.sign_in_link")[:2] == (BY_PROCESS, "")


@keeps("deliver", of=manage_kept_of)
def test_manage_deliver_records_its_reason(demo, default_file):
    path = default_file(classes__heavy_new_tokens=12_000)
    document = path.with_name("document.json")
    document.write_text(json.dumps(json.loads(path.read_text())["document"]))
    call_command("deliver", "default", file=str(document), reason=WHY)
    who, why, value = last("delivery.propose")
    assert (who, why, value["document"]["classes"]["heavy_new_tokens"]) == (BY_PROCESS, WHY, 12_000)
