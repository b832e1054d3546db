"""Every kind of object that REST can change: how it is created, where it is read, and every write to it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations_with_replacement
from typing import Any

from django.utils import timezone
from msgspec import convert

from controlplane.doors.jobs.tests.test_expire import calibration, experiment, preview
from controlplane.evidence.experiments.models import Matrix
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.tuning.models import Tuning
from controlplane.pages.fleet_ops import actions
from controlplane.pages.shares.services import create_share
from controlplane.people.accounts.models import ApiToken
from controlplane.people.audit.services import Actor
from controlplane.people.notices import services as notices
from controlplane.traffic.aliases import services as aliases
from controlplane.traffic.batches.models import Batch
from controlplane.traffic.deliveries import services as deliveries
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.timing import freezing
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.keys import services as keys
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.policies import services as policies
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.use import budgets
from fleet.models import Instance, Node, Pool, State

ADA, OTTO = Actor("user", "ada", is_admin=True), Actor("user", "otto")
WHY = "less prefill on warm instances"
CANARY = {"mode": "canary", "share": 0.1, "for_s": 600}
FULL = {"mode": "full", "bake_s": 600}
Path = Mapping[str, object]  # value of each variable in a path


@dataclass(frozen=True, eq=False)
class Write:
    method: str
    path: str  # as in the OpenAPI document, without /api/v1
    body: Any = None
    query: str = ""
    # True if the fields that people see stay the same, so that another write with the same ETag may follow
    keeps: bool = False
    repeats: bool = False  # True if a repeated write gets the first answer, whatever the version


@dataclass(frozen=True)
class Kind:
    name: str
    path: str  # path where its ETag is read
    make: Callable[[], Path]
    writes: tuple[Write, ...]
    shown: Callable[[Any], Any] = field(default=lambda answer: answer)  # selects the fields that writes may change

    def pairs(self) -> Iterator[tuple[Write, Write]]:
        """Return each pair of writes, including each write with itself."""
        for first, second in combinations_with_replacement(self.writes, 2):
            alike = first is second and first.repeats
            if not (first.keeps or second.keeps or alike):
                yield first, second


def patch(path: str, **body: Any) -> Write:
    return Write("PATCH", path, body)


def post(path: str, body: Any = None, **more: Any) -> Write:
    return Write("POST", path, body, **more)


def delete(path: str) -> Write:
    return Write("DELETE", path)


# Makers


def policy() -> Policy:
    return policies.ensure_default_policy()


def pool(**changes: Any) -> Pool:
    policy()
    engine = {"gpu": "h100_sxm"}
    document = {"name": "demo", "model": "llama-3.1-8b", "kind": "sim", "replicas": 2, "engine": engine, **changes}
    actions.apply(fleet(document), ADA, reason=WHY)
    return Pool.objects.get(name=document["name"])


def fleet(*pools: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": list(pools)}}


def freeze() -> Path:
    policy()
    now = timezone.now()
    start, end = (f"{now + timedelta(days=days):%Y-%m-%dT%H:%M}" for days in (1, 2))
    rule = {"name": "nights", "policies": (), "start": start, "end": end, "zone": "UTC", "reason": WHY}
    return {"freeze_id": freezing.add_freeze(convert(rule, FreezeRule), ADA).pk}


def key() -> ApiKey:
    return keys.create_key("search", keys.KeyTerms(priority=1, priority_max=5), ADA)[0]


def required() -> Path:
    pool()
    keys.require_keys(["demo"], ADA)
    return {}


def budget() -> Path:
    return {"budget_id": budgets.create_budget(key(), "tokens", "day", budgets.BudgetTerms(limit=100), ADA).pk}


def channel() -> Path:
    terms = notices.ChannelTerms(name="ops", url="https://93.184.216.34/hook")
    return {"channel_id": notices.create_channel("webhook", terms, ADA)[0].pk}


def token() -> Path:
    mine = ApiToken.objects.latest("pk")
    return {"token_id": ApiToken.issue(user=mine.user, name="old", scopes=["live:read"])[0].pk}


def instance() -> Path:
    made = Instance.objects.create(pool=pool(), name="demo-0", ordinal=0, state=State.READY)
    return {"name": made.name}


def node() -> Path:
    return {"name": Node.objects.create(name="gpu-1").name}


def halted() -> Path:
    return {"name": (Pool.objects.filter(pk=pool().pk).update(halted="no memory") and "demo")}


def changed_pool() -> Path:
    pool()
    return {"name": pool(model="llama-3.1-70b").name}


def models(*targets: str) -> Path:
    pool()
    for replicas in targets:
        document = {"schema": 1, "models": {replicas: {"pool": "demo"}}}
        aliases.publish_document(document, ADA, WHY)
    return {}


def models_draft() -> Path:
    models("chat")
    aliases.open_draft(ADA)
    aliases.save_draft({"schema": 1, "models": {"code": {"pool": "demo"}}}, ADA)
    return {}


def drafted(tokens: int = 9000) -> Path:
    policies.open_draft(policy(), OTTO)
    policies.patch_draft(policy(), {"classes.heavy_new_tokens": tokens}, OTTO)
    return {"name": "default"}


def two_versions() -> Path:
    drafted()
    policies.publish(policy(), OTTO, WHY)
    return {"name": "default"}


def delivery(state: str = "", **plan: Any) -> Path:
    pool()
    drafted()
    made = deliveries.propose(policy(), {"steps": [CANARY, FULL], **plan}, OTTO, WHY)
    if state:
        Delivery.objects.filter(pk=made.pk).update(state=state, share=0.1, clock_at=timezone.now(), generation=1)
    return {"delivery_id": made.pk}


def switchback() -> Path:
    steps = [CANARY, {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 4}, FULL]
    made = delivery(steps=steps)
    Delivery.objects.filter(pk=made["delivery_id"]).update(
        state="step", step=1, blocks=[0, 1] * 4, clock_at=timezone.now()
    )
    return made


def matrix(status: str) -> Path:
    made = Matrix.objects.create(name="m", body={}, actor="ada")
    experiment(status=status, matrix=made)
    return {"number": made.pk}


def tuning(status: str) -> Path:
    about: dict[str, Any] = {"live_version": 1, "pool": "demo", "trace_name": "t", "max_requests": 100, "space": []}
    about["limits"] = {"ttft_ms": None, "tpot_ms": None}
    made = Tuning.objects.create(policy=policy(), status=status, seed=1, workers=1, total=3, actor="ada", **about)
    return {"name": "default", "number": made.pk}


def plan() -> Path:
    asked = {"trace": "t", "slo": {"all": {"ttft_ms": 9}}}
    return {"number": FleetPlan.objects.create(asked=asked, max_requests=9, actor="ada").pk}


def batch() -> Path:
    return {"name": Batch.objects.create(key=key(), api_path="/v1/completions", window_s=60, actor="search").name}


def calibrated() -> Path:
    made = instance()
    calibration()
    Instance.objects.filter(name="demo-0").update(name="chat-0")
    return made | {"name": "chat-0"}


# The table

FREEZE, KEY, BUDGET, CHANNEL = (
    "/freezes/{freeze_id}",
    "/keys/{key_id}",
    "/budgets/{budget_id}",
    "/channels/{channel_id}",
)
POOL, INSTANCE, NODE, POLICY = "/pools/{name}", "/instances/{name}", "/nodes/{name}", "/policies/{name}"
DRAFT, DELIVERY, TUNING = f"{POLICY}/draft", "/deliveries/{delivery_id}", f"{POLICY}/tunings/{{number}}"
RULES = f"{POLICY}/delivery-rules"
REASON = {"reason": WHY}


def rules(**values: Any) -> Write:
    return Write("PUT", RULES, {"direct": "allowed", "approvals_needed": 0, "reason": WHY, **values})


def models_of(name: str) -> dict[str, Any]:
    return {"schema": 1, "models": {name: {"pool": "demo"}}}


LATER = f"{timezone.now() + timedelta(days=3):%Y-%m-%dT%H:%M}"
KINDS = (
    Kind("freeze", FREEZE, freeze, (patch(FREEZE, name="weekends"), patch(FREEZE, end=LATER), delete(FREEZE))),
    Kind(
        "key", KEY, lambda: {"key_id": key().pk},
        (
            patch(KEY, name="find"), patch(KEY, requests_per_min=9), patch(KEY, priority=2, priority_max=4),
            post(f"{KEY}/revoke"),
        ),
    ),
    Kind(
        "required keys", "/keys/required", required,
        (Write("PUT", "/keys/required", {"pools": ["*"]}), Write("PUT", "/keys/required", {"pools": []})),
    ),
    Kind("budget", BUDGET, budget, (patch(BUDGET, limit=7), patch(BUDGET, warn_at=0.5), delete(BUDGET))),
    Kind(
        "channel", CHANNEL, channel,
        (
            patch(CHANNEL, name="night"), patch(CHANNEL, events=["delivery.*"]), patch(CHANNEL, enabled=False),
            post(f"{CHANNEL}/rotate"), delete(CHANNEL),
        ),
    ),
    Kind("share", "/shares/{share_id}", lambda: {"share_id": create_share("wall", "", ADA)[0].pk},
         (delete("/shares/{share_id}"),)),
    Kind("token", "/tokens/{token_id}", token, (delete("/tokens/{token_id}"),)),
    Kind("rules", RULES, lambda: {"name": policy().name}, (rules(least_share=0.2), rules(least_for_s=900))),
    Kind(
        "fleet", "/fleet", lambda: {"": pool()},
        tuple(
            Write("PUT", "/fleet", fleet({"name": "demo", "model": "llama-3.1-8b", "kind": "sim", "replicas": n}))
            for n in (3, 4)
        ),
    ),
    Kind(
        "pool", POOL, changed_pool,
        (
            post(f"{POOL}/scale", {"replicas": 5}), post(f"{POOL}/scale", {"replicas": 6}),
            post(f"{POOL}/rollback", {"version": 1}), post(f"{POOL}/observe", keeps=True),
            post(f"{POOL}/serve", keeps=True),
        ),
    ),
    Kind("halted pool", POOL, halted, (post(f"{POOL}/resume"), post(f"{POOL}/scale", {"replicas": 5}))),
    Kind(
        "instance", INSTANCE, instance,
        (
            post(f"{INSTANCE}/drain"), post(f"{INSTANCE}/stop"), post(f"{INSTANCE}/restart", keeps=True),
        ),
    ),
    Kind("calibration", f"{INSTANCE}/calibration", calibrated, (post(f"{INSTANCE}/calibration/cancel"),)),
    Kind("node", NODE, node, (post(f"{NODE}/cordon"), post(f"{NODE}/drain"), post(f"{NODE}/forget"))),
    Kind(
        "models", "/models", lambda: models("chat", "code"),
        (
            Write("PUT", "/models", models_of("bot"), f"?reason={WHY.replace(' ', '+')}"),
            Write("PUT", "/models", models_of("vision"), f"?reason={WHY.replace(' ', '+')}"),
            post("/models/rollback", {"to": 1, **REASON}),
        ),
    ),
    Kind(
        "draft of models", "/models/draft", models_draft,
        (
            Write("PUT", "/models/draft", {"document": models_of("bot")}, repeats=True),
            Write("PUT", "/models/draft", {"document": models_of("vision")}, repeats=True),
            delete("/models/draft"), post("/models/draft/publish", REASON),
        ),
    ),
    Kind(
        "policy", POLICY, two_versions,
        (
            post(f"{POLICY}/versions", {"document": policies.default_document("lpwl"), **REASON}),
            post(f"{POLICY}/versions", {"document": policies.default_document("round_robin"), **REASON}),
            post(f"{POLICY}/rollback", {"to": 1, **REASON}),
            post(f"{POLICY}/deliveries", {"document": policies.default_document("lpwl"), **REASON}, keeps=True),
        ),
    ),
    Kind(
        "draft", DRAFT, drafted,
        (
            Write("PATCH", DRAFT, {"overrides": {"classes.heavy_new_tokens": 12_000}}, repeats=True),
            Write("PATCH", DRAFT, {"overrides": {"failure.retries": 4}}, repeats=True),
            delete(DRAFT), post(f"{DRAFT}/publish", REASON), post(f"{DRAFT}/deliver", REASON),
            post(f"{DRAFT}/preview", keeps=True),
        ),
        shown=lambda answer: answer["document"],
    ),
    Kind(
        "proposal", DELIVERY, lambda: delivery(approvals={"needed": 1}),
        (
            post(f"{DELIVERY}/approve"), post(f"{DELIVERY}/reject", REASON), post(f"{DELIVERY}/withdraw"),
            post(f"{DELIVERY}/abort"),
        ),
    ),
    Kind("delivery", DELIVERY, delivery, (post(f"{DELIVERY}/start"), post(f"{DELIVERY}/abort"))),
    Kind(
        "running delivery", DELIVERY, lambda: delivery("step"),
        (post(f"{DELIVERY}/pause"), post(f"{DELIVERY}/advance", REASON), post(f"{DELIVERY}/abort")),
    ),
    Kind("paused delivery", DELIVERY, lambda: delivery("paused"),
         (post(f"{DELIVERY}/resume", REASON), post(f"{DELIVERY}/abort"))),
    Kind("switchback", DELIVERY, switchback, (post(f"{DELIVERY}/extend", REASON), post(f"{DELIVERY}/pause"))),
    Kind("experiment", "/experiments/{number}", lambda: {"number": experiment().pk},
         (post("/experiments/{number}/cancel"),)),
    Kind("matrix", "/matrices/{number}", lambda: matrix("queued"), (post("/matrices/{number}/cancel"),)),
    Kind("ended matrix", "/matrices/{number}", lambda: matrix("failed"), (post("/matrices/{number}/resume"),)),
    Kind("preview", f"{POLICY}/previews/{{number}}", lambda: {"name": "default", "number": preview().pk},
         (post(f"{POLICY}/previews/{{number}}/cancel"),)),
    Kind("tuning", TUNING, lambda: tuning("queued"),
         (post(f"{TUNING}/cancel"), post(f"{TUNING}/draft", {"trial": 1}, keeps=True))),
    Kind("ended tuning", TUNING, lambda: tuning("failed"), (post(f"{TUNING}/resume"),)),
    Kind("plan", "/plans/{number}", plan, (post("/plans/{number}/cancel"),)),
    Kind("batch", "/batches/{name}", batch, (post("/batches/{name}/cancel"),)),
)  # fmt: skip
