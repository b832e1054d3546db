"""The rules about what decides a pool's requests, in every way to change it: docs/security.md has the same rows."""

import ast
import contextlib
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command, get_commands
from django.db import transaction
from django.urls import get_resolver
from django.utils import timezone

from controlplane.doors import steps
from controlplane.doors.api.api import api
from controlplane.doors.cli.tests.conftest import network  # noqa: F401  (a fixture)
from controlplane.doors.cli.weir import main as weir
from controlplane.doors.cli.weir.main import ACTIONS
from controlplane.doors.up import database
from controlplane.doors.up.plan import Options
from controlplane.pages.fleet_ops import actions
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor
from controlplane.people.notices.models import Channel, Notice
from controlplane.testing import api_caller
from controlplane.traffic.deliveries import services as deliveries
from controlplane.traffic.deliveries.going_live.rules import ASKED, RULES, Way
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.policies import services as policies
from controlplane.traffic.policies.models import Policy
from fleet import services as fleet
from fleet.models import Instance, Pool, PoolVersion, State
from fleet.tries import RowsFailed

CODE = Path(__file__).resolve().parents[2]
ADA, OTTO = Actor("user", "ada", is_admin=True), Actor("user", "otto")
WHY, FIRE = "less prefill on warm instances", "the old policy melts the GPUs"
MODEL = "llama-3.1-8b"
FULL = {"steps": [{"mode": "full", "bake_s": 600}]}


def document(**pools):
    listed = [{"name": name, "model": MODEL, "kind": "sim", "policy": policy} for name, policy in pools.items()]
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": listed}}


class Caller:
    """One person, in every way of access."""

    def __init__(self, user, client, folder, monkeypatch):
        self.client, self.api, self.folder = client, api_caller(user), folder
        self._monkeypatch = monkeypatch

    def weir(self, *words):
        for name, value in {"WEIR_URL": "http://weir.test", "WEIR_TOKEN": self.api.token}.items():
            self._monkeypatch.setenv(name, value)
        self._monkeypatch.setattr("sys.argv", ["weir", *map(str, words)])
        with contextlib.suppress(SystemExit):
            weir.main()

    def file(self, content):
        path = self.folder / "file.json"
        path.write_text(json.dumps(content))
        return path


def past(emergency):
    return {"emergency": emergency} if emergency else {}


def flag(emergency):
    return ("--emergency", emergency) if emergency else ()


def command(*words):
    with contextlib.suppress(SystemExit, CommandError):
        call_command(*map(str, words))


# Ways of access. Each makes `harmful` live for the requests of the pool chat, which the policy careful decides.

HARMFUL = {"strategy.name": "random"}
AGAIN_ON = document(chat="careful")


def drafted():
    careful = Policy.objects.get(name="careful")
    policies.open_draft(careful, OTTO)
    return policies.patch_draft(careful, HARMFUL, OTTO)


def harmful():
    return Policy.objects.get(name="loose").versions.get(number=1).document


def publish_page(who, emergency):
    drafted()
    who.client.post("/policies/careful/draft/publish", {"reason": WHY, **past(emergency)})


def publish_rest(who, emergency):
    drafted()
    who.api.post("/policies/careful/draft/publish", {"reason": WHY, **past(emergency)})


def publish_document_rest(who, emergency):
    who.api.post("/policies/careful/versions", {"document": harmful(), "reason": WHY, **past(emergency)})


def publish_weir(who, emergency):
    file = who.file({"policy": "careful", "version": 1, "document": harmful()})
    who.weir("policy", "apply", file, "--reason", WHY, *flag(emergency))


def deliver_page(who, emergency):
    draft = drafted()
    typed = {"use_json": "1", "json": json.dumps(FULL), "reason": WHY, "etag": draft.etag, **past(emergency)}
    who.client.post("/policies/careful/draft/deliver", typed)
    for made in Policy.objects.get(name="careful").deliveries.all():
        who.client.post(f"/deliveries/{made.pk}/start", {"etag": made.etag, "reason": WHY})


def deliver_rest(who, emergency):
    drafted()
    made = who.api.post("/policies/careful/draft/deliver", {"plan": FULL, "reason": WHY, **past(emergency)}).json()
    who.api.post(f"/deliveries/{made.get('id', 0)}/start", {})


def deliver_document_rest(who, emergency):
    body = {"document": harmful(), "plan": FULL, "reason": WHY, **past(emergency)}
    made = who.api.post("/policies/careful/deliveries", body).json().get("delivery") or {}
    who.api.post(f"/deliveries/{made.get('id', 0)}/start", {})


def deliver_weir(who, emergency):
    file = who.file({"policy": "careful", "version": 1, "document": harmful()})
    plan = who.folder / "plan.json"
    plan.write_text(json.dumps(FULL))
    who.weir("deliver", file, "--plan", plan, "--reason", WHY, *flag(emergency))


def deliver_command(who, emergency):
    plan = who.folder / "plan.json"
    plan.write_text(json.dumps(FULL))
    command(
        "deliver", "careful", "--file", who.file(harmful()), "--plan", plan, "--reason", WHY, *flag(emergency)
    )  # fmt: skip


def deliver_at_its_time(who, emergency):
    now = timezone.now()
    plan = {**FULL, "start": {"at": f"{now + timedelta(minutes=5):%Y-%m-%dT%H:%M}", "zone": "UTC", "latest_s": 7200}}
    drafted()
    who.api.post("/policies/careful/draft/deliver", {"plan": plan, "reason": WHY, **past(emergency)})
    for made in Policy.objects.get(name="careful").deliveries.all():
        deliveries.tick(made, now + timedelta(minutes=10))


def fleet_page(who, emergency):
    typed = {"document": json.dumps(document(chat="loose")), "reason": WHY, **past(emergency)}
    who.client.post("/fleet/apply", {**typed, "step": "apply", "digest": fleet.digest()})


def pool_form(who, emergency):
    """The form leads to the review of a document, which leads to its application."""
    typed = {"name": "chat", "model": MODEL, "kind": "sim", "replicas": "1", "policy": "loose"}
    page = who.client.post("/fleet/pools/chat/edit", typed)
    shown = page.context["document"]
    review = who.client.post("/fleet/apply", {"step": "plan", "document": shown, **past(emergency)})
    sent = {"step": "apply", "document": shown, "digest": review.context.get("digest", fleet.digest()), "reason": WHY}
    who.client.post("/fleet/apply", {**sent, **past(emergency)})


def put_fleet(who, emergency, wanted=None, query=""):
    query += f"&emergency={emergency.replace(' ', '+')}" if emergency else ""
    who.api.call("PUT", f"/fleet?reason=because{query}", wanted or document(chat="loose"))


def second_pool(who, emergency):
    put_fleet(who, emergency, document(chat="careful", aaa="loose"))


def removed_and_added_again(who, emergency):
    who.api.call("PUT", "/fleet?prune=true", document())
    Pool.objects.filter(name="chat").delete()  # as the reconciler does once its instances are gone
    put_fleet(who, emergency, document(other="loose"))


def fleet_weir(who, emergency):
    who.weir("fleet", "apply", who.file(document(chat="loose")), "--reason", WHY, *flag(emergency))


def fleet_command(who, emergency):
    command("fleet_apply", who.file(document(chat="loose")), "--reason", WHY, *flag(emergency))


def up_fleet(who, emergency):
    database._apply_fleet(Options(fleet=who.file(document(chat="loose"))))


PUBLISH = (publish_page, publish_rest, publish_document_rest, publish_weir)
DELIVER = (
    deliver_page, deliver_rest, deliver_document_rest, deliver_weir, deliver_command, deliver_at_its_time,
)  # fmt: skip
FLEET = (
    fleet_page, pool_form, put_fleet, second_pool, removed_and_added_again, fleet_weir, fleet_command, up_fleet,
)  # fmt: skip
DOORS = (*PUBLISH, *DELIVER, *FLEET)
ON_HOST = (deliver_command, fleet_command, up_fleet)  # started by an administrator


# The fleet, and what decides its requests


@pytest.fixture
def world(redis_away, db):
    policies.create_policy("careful", policies.default_document("adaptive_v1"), ADA, WHY)
    actions.apply(AGAIN_ON, ADA, reason=WHY)
    policies.create_policy("loose", policies.default_document("random"), OTTO, WHY)  # Otto, to whom the rules apply


@pytest.fixture
def otto_at(otto, otto_client, network, tmp_path, monkeypatch):  # noqa: F811
    return Caller(otto, otto_client, tmp_path, monkeypatch)


@pytest.fixture
def ada_at(ada, ada_client, network, tmp_path, monkeypatch):  # noqa: F811
    return Caller(ada, ada_client, tmp_path, monkeypatch)


def is_harmful():
    """Return whether the harmful document decides requests of any pool."""
    live = {policy.name: policy.versions.get(number=policy.live).document for policy in Policy.objects.all()}
    return any(live[pool.policy]["strategy"]["name"] == "random" for pool in Pool.objects.filter(removed=False))


def ruled(**rules):
    given = {"direct": "allowed", "approvals_needed": 0, **rules}
    deliveries.set_rules(Policy.objects.get(name="careful"), ADA, WHY, **given)


def frozen():
    start, end = (f"{timezone.now() + timedelta(days=d):%Y-%m-%dT%H:%M}" for d in (-1, 1))
    Freeze.objects.create(
        name="Christmas", policies=["careful"], start=start, end=end, zone="UTC", reason=WHY, created_by="ada"
    )


def failed_before():
    drafted()
    made = deliveries.propose(Policy.objects.get(name="careful"), FULL, OTTO, WHY)
    type(made).objects.filter(pk=made.pk).update(state="aborted", what="fail", why="heavy TTFT is 31 % worse")


def being_delivered():
    careful = Policy.objects.get(name="careful")
    policies.open_draft(careful, OTTO)
    policies.patch_draft(careful, {"classes.heavy_new_tokens": 9000}, OTTO)
    deliveries.propose(careful, {**FULL, "approvals": {"needed": 1}}, OTTO, WHY)


ROWS = {
    "none": lambda: None,
    "approvals": lambda: ruled(approvals_needed=1),
    "by delivery only": lambda: ruled(direct="never"),
    "administrators only": lambda: ruled(direct="admin"),
    "freeze": frozen,
    "open delivery": being_delivered,
    "failed before": failed_before,
}


def named(doors):
    return pytest.mark.parametrize("door", doors, ids=lambda door: door.__name__)


@contextlib.contextmanager
def undone():
    """Roll all writes back at the end, so that each rule is tested in the same world."""
    before = transaction.savepoint()
    yield
    transaction.savepoint_rollback(before)


@named(DOORS)
def test_no_way_of_access_lets_an_operator_bypass_a_rule_or_declare_an_emergency(world, otto_at, door):
    let_through = set()
    for row, rule in ROWS.items():
        with undone():
            rule()
            door(otto_at, "")
            if is_harmful():
                let_through.add(row)
    assert let_through == {"none"} | ({"administrators only"} if door in ON_HOST else set())
    if door not in ON_HOST:
        ruled(direct="never")
        door(otto_at, FIRE)
        assert not is_harmful(), "an operator declared an emergency"


@named([door for door in DOORS if door is not up_fleet])
def test_an_administrators_emergency_bypasses_the_rule_and_is_notified(world, ada_at, door):
    Channel.objects.create(name="ops", url="https://example.com/hook", events=["policy.emergency"])
    for row in ("approvals", "by delivery only", "freeze"):
        with undone():
            ROWS[row]()
            door(ada_at, FIRE)
            assert is_harmful(), row
            assert FIRE in AuditEntry.objects.filter(action="policy.emergency").values_list("reason", flat=True), row
            assert FIRE in Notice.objects.first().text, row


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_a_dry_run_of_the_fleet_document_answers_as_the_application_does(world, otto_at, dry_run):
    ruled(approvals_needed=1)
    answer = otto_at.api.call("PUT", f"/fleet?dry_run={dry_run}", document(chat="loose"))
    assert answer.status_code == 403
    (error,) = answer.json()["errors"]
    assert (error["path"], error["message"]) == (
        "spec.pools[0].policy", "policy careful needs 1 approvals: propose a delivery",
    )  # fmt: skip


# A pool returns to the model that it served before, whose requests the policy careful now decides


@pytest.fixture
def changed(world):
    """The pool taker worked with that model; one of its instances has failed with its next model."""
    fleet_of = document(chat="careful", taker="loose")
    actions.apply(fleet_of, ADA, reason=WHY)
    PoolVersion.objects.filter(pool__name="taker").update(proven_at=timezone.now())
    fleet_of["spec"]["pools"][1] |= {"model": "another", "update": {"on_failure": "rollback"}}
    actions.apply(fleet_of, ADA, reason=WHY)
    taker = Pool.objects.get(name="taker")
    Instance.objects.create(
        pool=taker, name="taker-0", ordinal=0, epoch=1, failures=1, state=State.FAILED, reason="no such model",
        config_hash=taker.versions.first().config_hash,
    )  # fmt: skip


def by_itself(_who):
    with contextlib.suppress(RowsFailed):  # Redis is unreachable
        steps.reconcile()


RETURN = {
    "page": lambda who: who.client.post("/fleet/pools/taker/rollback", {"version": "1", "reason": WHY}),
    "REST": lambda who: who.api.post("/pools/taker/rollback", {"reason": WHY}),
    "by itself": by_itself,
}


# An observed pool begins to take requests, which the policy careful decides


SERVE = {
    "page": lambda who: who.client.post("/fleet/pools/seen/mode/serve", {"reason": WHY}),
    "REST": lambda who: who.api.post("/pools/seen/serve", {"reason": WHY}),
}


@pytest.mark.parametrize("door", SERVE)
def test_a_pool_is_observed_without_a_rule_and_served_by_the_rules(world, otto_at, door):
    fleet_of = document(chat="careful")
    seen = {"name": "seen", "model": MODEL, "kind": "external", "policy": "loose", "mode": "observe"}
    fleet_of["spec"]["pools"].append({**seen, "engine": {"urls": ["http://10.0.0.7:8000"]}})
    for row in ("none", "by delivery only", "freeze"):
        with undone():
            ROWS[row]()
            otto_at.api.call("PUT", "/fleet", fleet_of)
            assert Pool.objects.get(name="seen").mode == "observe", row
            SERVE[door](otto_at)
            assert (Pool.objects.get(name="seen").mode == "serve") is (row == "none"), row


@pytest.mark.parametrize("door", RETURN)
def test_a_pool_rolls_back_to_a_working_version_unless_a_rule_forbids_it(changed, otto_at, door):
    for row, rule in ROWS.items():
        with undone():
            rule()
            RETURN[door](otto_at)
            back = row in ("none", "freeze")
            assert Pool.objects.get(name="taker").model == (MODEL if back else "another"), row
            assert AuditEntry.objects.filter(action="pool.rollback").count() == back, row
            assert bool(Pool.objects.get(name="taker").halted) is (door == "by itself" and not back), row


# Rollbacks are always allowed

BACK = {
    "page": lambda who, to=1: who.client.post("/policies/careful/rollback", {"to": str(to), "reason": WHY}),
    "REST": lambda who, to=1: who.api.post("/policies/careful/rollback", {"to": to, "reason": WHY}),
}


@pytest.mark.parametrize("door", BACK)
def test_an_operator_rolls_back_whatever_the_rules_are(world, otto_at, door):
    publish_rest(otto_at, "")
    assert is_harmful()
    ruled(direct="never", approvals_needed=2)
    frozen()
    BACK[door](otto_at)
    assert not is_harmful()


CANDIDATES = {"that was not started": ("ready", None), "that a guard aborted": ("aborted", "fail")}


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("door", BACK)
def test_nobody_rolls_back_to_a_version_that_was_never_live(world, ada_at, door, candidate):
    state, what = CANDIDATES[candidate]
    drafted()
    made = deliveries.propose(Policy.objects.get(name="careful"), FULL, OTTO, WHY)
    type(made).objects.filter(pk=made.pk).update(state=state, what=what or made.what)
    answer = BACK[door](ada_at, made.candidate.number)
    assert answer.status_code == 422
    assert "v2 was never live: only a delivery brings it there" in answer.content.decode()
    assert not is_harmful()


ON = {
    "page": lambda who, number: who.client.post(f"/deliveries/{number}/advance", {"reason": WHY}),
    "REST": lambda who, number: who.api.post(f"/deliveries/{number}/advance", {"reason": WHY}),
    "weir": lambda who, number: who.weir("deliver", "advance", number, "--reason", WHY),
}


@pytest.mark.parametrize("door", ON)
def test_only_users_who_can_publish_directly_can_skip_a_step(world, otto_at, ada_at, door):
    ruled(direct="never")
    drafted()
    steps = [{"mode": "canary", "share": 0.1, "for_s": 600}, {"mode": "full", "bake_s": 600}]
    careful = Policy.objects.get(name="careful")
    made = deliveries.start(deliveries.propose(careful, {"steps": steps}, OTTO, WHY), OTTO)
    type(made).objects.filter(pk=made.pk).update(state="step", share=0.1, clock_at=timezone.now())
    for who in (otto_at, ada_at):
        ON[door](who, made.pk)
        assert is_harmful() is (who is ada_at)


# There is no other way

WALKED = {
    "publish_draft", "publish_document", "deliver_draft", "deliver_document", "start_delivery", "resume_delivery",
    "advance_delivery", "put_fleet", "roll_back", "rollback_pool", "serve_pool", "put_models",
    "publish_models_draft", "roll_back_models",
}  # fmt: skip
HARMLESS = {
    "act_on_instance", "act_on_node", "calibrate_instance", "cancel_calibration", "cancel_preview", "cancel_tuning",
    "check_fleet", "discard_draft", "discover_engines", "observe_pool",
    "draft_tuning", "edit_draft", "extend_delivery", "forget_node", "open_draft",
    "resume_pool", "resume_tuning", "scale_pool", "start_preview", "start_tuning", "withdraw_delivery",
    "open_models_draft", "put_models_draft", "discard_models_draft",
    "create_policy",  # no pool uses it yet
    "make_profile",
}  # fmt: skip
SCOPES = {"policy:write", "policy:publish", "fleet:write"}


def test_every_rest_operation_that_could_bypass_a_rule_is_listed():
    found = {
        operation["operationId"]
        for methods in api.get_openapi_schema()["paths"].values()
        for method, operation in methods.items()
        if method != "get" and SCOPES & set(operation["security"][0]["TokenOrSession"])
    }
    assert found == HARMLESS | WALKED


PAGES_WALKED = {
    "draft-publish", "draft-deliver", "delivery-act", "delivery-try", "fleet-apply", "fleet-new-pool",
    "fleet-edit-pool", "fleet-rollback", "fleet-mode", "policy-rollback",
    "models-publish", "models-rollback",
}  # fmt: skip
PAGES_HARMLESS = {
    "fleet", "fleet-pool", "fleet-scale", "fleet-resume", "fleet-nodes", "fleet-node",
    "fleet-node-forget", "fleet-node-act", "fleet-instance", "fleet-calibrate",
    "fleet-calibrate-from-traffic", "fleet-calibration-cancel",
    "fleet-act", "fleet-adopt",  # fleet-adopt leads to fleet-apply
    "deliveries", "delivery", "delivery-live", "delivery-series", "freezes", "freeze-remove", "delivery-rules",
    "policies",
    "policy-create", "policy", "policy-version", "policy-compare", "draft", "draft-open", "draft-autosave",
    "models", "models-version", "models-draft", "models-open", "models-alias", "models-review", "models-discard",
    "draft-watch", "draft-review", "draft-discard", "draft-settle", "draft-resolve",
}  # fmt: skip


def test_every_page_of_policies_deliveries_and_the_fleet_is_listed():
    packages = (
        "controlplane.traffic.policies.",
        "controlplane.traffic.aliases.",
        "controlplane.pages.delivery_pages.",
        "controlplane.pages.fleet_pages.",
    )
    found = {
        pattern.name
        for pattern in get_resolver().url_patterns
        for pattern in getattr(pattern, "url_patterns", [pattern])
        if getattr(pattern, "callback", None) is not None and pattern.callback.__module__.startswith(packages)
    }
    assert found == PAGES_HARMLESS | PAGES_WALKED


COMMANDS_WALKED = {"deliver", "fleet_apply", "up"}
COMMANDS_HARMLESS = {
    "calibrate", "demo_traffic", "doctor", "explain", "fleet_export", "fleet_render", "fleet_status", "fleet_stop_all",
    "node", "openapi_export", "serve", "sign_in_link",
}  # fmt: skip


def test_every_command_is_listed():
    own = {name for name, app in get_commands().items() if str(app).startswith(("controlplane", "fleet"))}
    assert own == COMMANDS_HARMLESS | COMMANDS_WALKED


VERBS_WALKED = {
    "models apply",
    "models rollback",
    "policy apply",
    "deliver",
    "deliver advance",
    "deliver resume",
    "fleet apply",
}
VERBS_HARMLESS = {
    "models get",
    "experiment run", "experiment wait", "policy export", "policy diff", "preview", "tune", "explain", "deliver wait",
    "deliver status", "deliver abort", "deliver pause", "profile", "fleet discover",
    "budget list", "budget set", "budget delete", "batch list", "batch cancel", "batch get",
}  # fmt: skip


def test_every_verb_of_weir_is_listed():
    text = (CODE / "controlplane" / "doors" / "cli" / "weir" / "main.py").read_text()
    verbs = re.findall(r'_verb\(\s*(\w+), "([a-z ]+)"', text)
    found = {name if top == "commands" else f"{top} {name}" for top, name in verbs} | {f"deliver {n}" for n in ACTIONS}
    assert found == VERBS_HARMLESS | VERBS_WALKED


def calls(name):
    """Return the functions that call the function `name`, by module."""
    found = set()
    for top in ("controlplane", "fleet"):
        for path in (CODE / top).rglob("*.py"):
            if "tests" not in path.parts and not path.name.startswith("testing"):
                found |= {f"{path.relative_to(CODE)}:{function}" for function in _callers(path, name)}
    return found


def _callers(path, name):
    text = path.read_text()
    for node in ast.walk(ast.parse(text if f"{name}(" in text else "")):
        if isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                called = inner.func if isinstance(inner, ast.Call) else None
                if getattr(called, "attr", getattr(called, "id", "")) == name:
                    yield node.name


def test_a_version_goes_live_and_a_pool_gets_its_policy_only_in_listed_places():
    assert calls("go_live") == {
        "controlplane/traffic/policies/services.py:_store",
        "controlplane/traffic/deliveries/moving.py:_promote",
        "controlplane/traffic/deliveries/moving.py:_bring_back",
    }
    assert calls("apply_fleet") == {"controlplane/pages/fleet_ops/actions.py:apply"}
    assert calls("_save_pool") == {"fleet/services.py:_write"}
    assert calls("_write") >= {"fleet/services.py:apply_fleet"}
    assert calls("rollback_pool") == {"controlplane/pages/fleet_ops/actions.py:roll_back"}


# The table

TEXT = (CODE / "docs" / "security.md").read_text()


def test_the_table_lists_the_ways_to_which_a_rule_applies():
    for rule in RULES:
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{rule}` |")]
        ways = row.split(" | ")[2]
        assert {way for way in Way if rule in ASKED[way] and way not in ways} == set(), rule


def test_the_table_names_every_way():
    rows = "\n".join(line.split("|")[1] for line in TEXT.splitlines() if line.startswith("|"))
    assert {way for way in Way if way not in rows} == set()
