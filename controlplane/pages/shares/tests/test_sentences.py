"""The sentences of a share: the facts that a wall needs, made of known words, names and numbers."""

import ast
from pathlib import Path
from typing import Any, get_args

import pytest

from controlplane.live.dashboard.frame.build import build_frame
from controlplane.live.dashboard.frame.types import ShownEvent
from controlplane.live.dashboard.tests.test_attention import LIVE, late_step, node
from controlplane.live.dashboard.tests.test_frames import NOW, Inputs, fleet, instance, router, sample
from controlplane.pages.shares import kinds, view
from controlplane.pages.shares.tests.test_secrets import delivery
from controlplane.pages.shares.view import NODE, SENTENCES, sentence
from controlplane.people.notices.events import EVENTS
from fleet import services
from fleet.events import ROUTINE
from fleet.models import State
from fleet.spec.changes import ChangeKind
from router.contract.redis.fleet_status import FleetEvent

ROOT = Path(services.__file__).parent


def shared(pool: str = "", **changes: Any) -> Any:
    inputs: dict[str, Any] = {
        "fleets": {"demo": fleet(instance("demo-0"))},
        "samples": {"demo-0": sample()},
        "routers": {"r": router()},
        "policies": LIVE,
        "control_at": NOW,
    }
    return view.frame_of(build_frame(NOW, Inputs(**{**inputs, **changes})), pool)


@pytest.mark.parametrize(
    ("changes", "subject", "reason"),
    [
        ({"fleets": {"demo": fleet(instance("demo-0", "failed", "by anna"))}}, "demo-0", "failed: see Weir"),
        ({"fleets": {"demo": {**fleet(instance("demo-0")), "halted": "anna"}}}, "demo", "rollout is halted: see Weir"),
        (
            {
                "fleets": {"demo": fleet(instance("demo-0"), instance("demo-1"))},
                "samples": {"demo-0": sample(NOW - 20), "demo-1": sample()},
            },
            "demo-0",
            "offline: no sample for 20 s",
        ),
        ({"samples": {"demo-0": sample(kv_usage=0.97)}}, "demo-0", "KV usage 97 % (limit of the policy 95 %)"),
        ({"steps": {"fleet.reconcile": late_step("anna")}}, "fleet.reconcile", "due every 1 s: see Weir"),
        ({"nodes": [node(NOW - 45)]}, "#1", "no heartbeat from the node for 45 s, and it holds no instance"),
        ({"routers": {"anna": router(NOW - 6)}}, "router 1", "no heartbeat from router for 6 s"),
        ({"deliveries": [delivery(NOW)]}, "default v3 → v4", "aborted by a person: see Weir"),
    ],
)
def test_an_entry_of_attention_states_the_facts_without_typed_text(
    changes: dict[str, Any], subject: str, reason: str
) -> None:
    entries = {item["subject"]: item for item in shared(**changes)["attention"]}
    assert reason in entries[subject]["reason"]
    assert entries[subject]["href"] == ""


def test_an_instance_of_a_silent_node_is_shown_as_last_known() -> None:
    rows = shared(samples={"demo-0": sample(NOW - 20)})["instances"]
    assert [rows["status"], rows["last_known"]] == [["ready"], [True]]
    assert rows["reason"] == ["last known 20 s ago: no sample of its node has arrived since"]


def test_a_delivery_is_described_by_its_versions_step_and_figure() -> None:
    [line] = shared(deliveries=[delivery(NOW)])["deliveries"]
    assert line["text"] == "v3 → v4 canary 25 % aborted · heavy 1.04× (0.97–1.12×)"


def test_sums_over_all_pools_have_a_history() -> None:
    frame = shared(fleets={"demo": fleet(instance("demo-0")), "other": {**fleet(), "pool": "other"}})
    row: Any = {"at": NOW, "classes": {"*": {"warm": [1.0], "anna": [1.0]}, "gone": {}}, "ids": "demo-0", "kv": b"\x05"}
    [kept] = view.history_of([row], frame)
    assert kept == {"at": NOW, "classes": {"*": {"warm": [1.0]}}, "ids": "demo-0", "kv": b"\x05"}


def event(kind: str, subject: str, *pools: str) -> FleetEvent:
    return FleetEvent(at=NOW, kind=kind, subject=subject, text="by anna", actor="anna", pools=pools)


@pytest.mark.parametrize(
    ("happened", "text"),
    [
        (event("drain", "demo-0", "demo"), "demo-0 was asked to drain"),
        (event("delivery.aborted", "policy default v4", "demo"), "policy default v4: a delivery was aborted"),
        (event("budget.warned", "key of anna"), "an API key or a pool has spent most of a budget"),
        (event("node", "gpu-1"), "a node came, went or changed"),
        (event("a new kind", "demo", "demo"), None),
        (event("drain", "gone-0", "demo"), None),
        (event("node", "gpu-1", "gone"), None),
    ],
)
def test_an_event_is_described_by_the_sentence_of_its_kind(happened: FleetEvent, text: str | None) -> None:
    assert [line["text"] for line in shared(events=[happened])["events"]] == ([text] if text else [])


def announced() -> set[str]:
    """Return the kinds of events that appear literally in calls of fleet/events.py."""
    calls = (
        node
        for path in ROOT.rglob("*.py")
        if "tests" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )
    recorded = [call for call in calls if ast.unparse(call.func) in ("events.record", "events.record_pool")]
    kinds_of = (call.args[1] for call in recorded)
    return {kind.value for kind in kinds_of if isinstance(kind, ast.Constant) and isinstance(kind.value, str)}


def test_every_kind_of_event_on_the_ticker_has_its_sentence() -> None:
    written = announced()
    assert written >= {"scale", "halt", "complete"}
    changes = {*get_args(ChangeKind)} - {"unlisted", "prices"}
    asked = {*services._LEADS_TO, "restart"}
    states = {*State.values} - {*map(str, ROUTINE)} | {"ready"}
    told = {*SENTENCES, *map(str, ROUTINE)}
    assert written | changes | asked | states <= told
    line: ShownEvent = {"at": NOW, "kind": "", "subject": "demo", "text": "", "actor": "", "pools": []}
    assert all(sentence({**line, "kind": kind}, {"demo"}) for kind in (NODE, *SENTENCES, *EVENTS))


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (kinds.number, "12", None),
        (kinds.number, 12, 12),
        (kinds.word(("up",)), "down", ""),
        (kinds.name, "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        (kinds.name, "by anna", ""),
        (kinds.withheld, "by anna", "see Weir"),
        (kinds.withheld, "", ""),
        (kinds.parts(", ", r"\d"), "1, anna, 2", "1, 2"),
        (kinds.by(kinds.name, kinds.number), {"a": 1, "by anna": 2}, {"a": 1}),
        (kinds.record(a=kinds.number), {"a": 1, "b": 2}, {"a": 1}),
    ],
)
def test_a_kind_shows_only_the_expected_values(kind: kinds.Kind, value: Any, shown: Any) -> None:
    assert kind(value) == shown
