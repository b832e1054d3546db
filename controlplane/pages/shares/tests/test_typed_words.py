"""Every text column of the database holds a secret and everything is published as the control worker publishes it;
nobody without an account can read the secret.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.db import models
from django.test import Client
from django.urls import get_resolver
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from controlplane.doors.jobs.tests.test_expire import calibration, preview
from controlplane.evidence.previews import report as savings
from controlplane.evidence.previews.models import Preview
from controlplane.live.dashboard import step as frames
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.delivery_pages import report as delivery_lines
from controlplane.pages.shares.consumers import SECONDS, snapshot
from controlplane.pages.shares.models import Share
from controlplane.people.audit.services import Actor
from controlplane.people.notices.models import Channel, Notice
from controlplane.people.notices.services import write_note
from controlplane.testing import api_caller
from controlplane.traffic.aliases import services as aliases
from controlplane.traffic.aliases.models import ModelsVersion
from controlplane.traffic.aliases.tests.conftest import document
from controlplane.traffic.deliveries import services as deliveries
from controlplane.traffic.deliveries.models import Approval, Delivery, Freeze, Look
from controlplane.traffic.deliveries.tests.conftest import plan
from controlplane.traffic.keys import publishing as keys
from controlplane.traffic.keys.models import ApiKey, Budget
from controlplane.traffic.policies import services as policies
from controlplane.traffic.policies.models import Policy, PolicyVersion
from controlplane.traffic.policies.tests.conftest import edit
from fleet import events
from fleet import services as fleet_services
from fleet.control import nodes
from fleet.control.publish import publish_step
from fleet.models import (
    AdapterHome,
    Calibration,
    Fleet,
    Instance,
    InstanceEvent,
    InstanceSource,
    Node,
    Pool,
    PoolVersion,
    State,
)
from router.contract.redis import redis_keys

pytestmark = pytest.mark.attacks
ALERTS = Path(settings.BASE_DIR) / "deploy" / "prometheus" / "alerts.yml"
SECRET = "two secret words"
SOMEBODY = Actor("user", SECRET, is_admin=True)
OURS = ("controlplane.", "fleet.")
# Columns that identify a row or its kind: their values are checked when they are given.
KEPT = {
    *("Pool.name", "Pool.model", "Pool.policy", "Pool.kind", "Pool.node", "Pool.mode", "Pool.ephemeral_owner"),
    *("Instance.name", "Instance.node", "Node.name", "Policy.name", "Share.pool", "Share.sha256", "Share.prefix"),
    *("PolicyVersion.sha256", "ModelsVersion.sha256", "InstanceEvent.kind", "InstanceEvent.pool", "Delivery.what"),
    "Budget.pool",
    # Documents with known fields
    *(f"Pool.{section}" for section in ("engine", "update", "placement", "schedule", "autoscale", "slo", "access")),
    *("Fleet.prices", "PoolVersion.config", "Instance.config", "PolicyVersion.document", "ModelsVersion.document"),
    *("InstanceSource.engines", "Preview.draft_document", "Preview.seeds", "Look.findings"),
    *(f"Delivery.{part}" for part in ("plan", "holds", "blocks", "slow", "memory", "results")),
}
FILLED = (  # values from which live state is made
    *(Fleet, Pool, PoolVersion, Instance, InstanceEvent, Node, Policy, PolicyVersion, Delivery, ModelsVersion),
    *(
        ApiKey,
        Share,
        Channel,
        Notice,
        Budget,
        Freeze,
        Approval,
        Look,
        Preview,
        Calibration,
        InstanceSource,
        AdapterHome,
    ),
)
# Never read for live state
UNREAD = {
    *("AdapterDemand", "ApiToken", "AuditEntry", "Batch", "BudgetSpending", "Cursor", "Draft", "Experiment"),
    *("FleetPlan", "FormerPool", "HeldUntil", "IdempotentAnswer", "KeyedPool", "Lease", "Matrix", "ModelsDraft"),
    *("OidcIdentity", "OidcSession", "Port", "PublicationOrder", "Run", "SignInLink", "StoredFile", "Trace", "Trial"),
    *("Tuning", "Use", "UseReport"),
}


def texts(model: type[models.Model]) -> Iterator[Any]:
    for field in model._meta.get_fields():
        is_text = isinstance(field, models.CharField | models.TextField) and not field.choices
        if is_text and f"{model.__name__}.{field.name}" not in KEPT:
            yield field


def documents(model: type[models.Model]) -> Iterator[Any]:
    for field in model._meta.get_fields():
        if isinstance(field, models.JSONField) and f"{model.__name__}.{field.name}" not in KEPT:
            yield field


def said(value: Any) -> Any:
    """Return a document with the secret in place of each text, and as an additional text."""
    if isinstance(value, dict):
        return {**{name: said(one) for name, one in value.items()}, SECRET: SECRET}
    if isinstance(value, list):
        return [*map(said, value), SECRET]
    return SECRET if isinstance(value, str) else value


def fill_all() -> None:
    """Write the secret into each text column of each row, followed by the row's number where the
    column must be unique.
    """
    for model in apps.get_models():
        if model is User or model.__module__.startswith(OURS):
            for row in model._default_manager.all():
                number = f" {row.pk}"
                values = {field.name: f"{SECRET}{number if field.unique else ''}" for field in texts(model)}
                limits = {field.name: field.max_length or 500 for field in texts(model)}
                cut = {name: value[: limits[name]] for name, value in values.items()}
                cut |= {field.name: said(getattr(row, field.name)) for field in documents(model)}
                if cut:
                    models.QuerySet(model).filter(pk=row.pk).update(**cut)  # bypasses managers that refuse updates


@pytest.fixture
def told(
    live_redis: redis.Redis,
    policy: Policy,
    pool: Pool,
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> redis.Redis:
    """Return a fleet in which every text is the secret."""
    assert get_resolver().url_patterns  # importing all pages takes seconds, in which a fleet would become stale
    Fleet.objects.create(pk=1, name="fleet")
    PoolVersion.objects.create(pool=pool, number=1, config={"model": "m", "kind": "sim", "engine": {}})
    Node.objects.create(name="gpu-1", last_seen=timezone.now())
    for i, state in enumerate((State.READY, State.FAILED, State.UNREACHABLE, State.DRAINING)):
        Instance.objects.create(pool=pool, name=f"demo-{i}", ordinal=i, node="gpu-1", state=state, reason=SECRET)
    key, _ = ApiKey.issue(name=SECRET, created_by=SECRET)
    Budget.objects.create(key=key, limit=1, unit="tokens", per="day")
    Channel.objects.create(name=SECRET, url="https://example.com", events=["*"], created_by=SECRET)
    with django_capture_on_commit_callbacks(execute=True):
        fleet_services.scale_pool("demo", 4, SECRET, SECRET)
        nodes.cordon("gpu-1", SECRET, SECRET)
        write_note(pool, SECRET, SOMEBODY)
        for instance in Instance.objects.all():
            for kind in ("drain", "refused", State.FAILED):
                events.record(instance, kind, SECRET, SECRET, SECRET)
        edit(policy, SOMEBODY, heavy_new_tokens=9_000)
        delivery = deliveries.propose(policy, plan(), SOMEBODY, SECRET)
        deliveries.withdraw(delivery, SOMEBODY, SECRET)
        policies.publish(policy, SOMEBODY, SECRET)
        aliases.publish_document(document(chat={"split": [{"pool": "demo", "weight": 1}]}), SOMEBODY, SECRET)
    Freeze.objects.create(name=SECRET, reason=SECRET)
    typed = {"engine": {**pool.engine, "environment": {"WORD": SECRET}}, "placement": {"labels": {"zone": SECRET}}}
    Pool.objects.filter(pk=pool.pk).update(**typed)
    Delivery.objects.update(holds=[{"code": "freeze", "text": SECRET}])
    Approval.objects.create(delivery=delivery, person=SECRET, actor_name=SECRET)
    Look.objects.create(delivery=delivery, state="step", step=0, generation=1, why=SECRET)
    InstanceSource.objects.create(pool=pool, trouble=SECRET, away_since=timezone.now())
    AdapterHome.objects.create(instance=pool.instances.earliest("pk"), epoch=0, name=SECRET, state="failed")
    preview()
    calibration()
    return live_redis


def published(client: redis.Redis) -> None:
    """Publish the fleet as the steps of the control worker do."""
    fleet = FakeFleet(client, size=4)
    fleet.write()
    client.delete(redis_keys.fleet_key("demo"))
    fill_all()
    publish_step()
    nodes.publish(timezone.now())
    delivery_lines.report(timezone.now())
    savings.report()
    keys.publish()
    frames.step(client, time.time(), "worker")


def served(client: Client, tokens: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Return everything that can be read without an account, by its address."""
    forms = [f"/badge/{{token}}/demo.{form}" for form in ("svg", "json", "shields")]
    of_shares = [address.format(token=token) for token in tokens.values() for address in ("/wall/s/{token}", *forms)]
    for address in (*of_shares, "/wall/s/weir_share_none", "/login", "/healthz", "/metrics", "/nothing"):
        yield address, client.get(address).content.decode()
    for shown in tokens:
        yield f"/ws/share {shown}", json.dumps(snapshot(shown, SECONDS))


def test_each_model_is_filled_or_known_not_to_be_part_of_live_state() -> None:
    ours = {model.__name__ for model in apps.get_models() if model.__module__.startswith(OURS)}
    assert ours - {model.__name__ for model in FILLED} == UNREAD


def test_nobody_without_an_account_can_read_typed_text(told: redis.Redis, client: Client) -> None:
    tokens = {shown: Share.issue(name=SECRET, pool=shown, created_by=SECRET)[1] for shown in ("", "demo")}
    published(told)
    assert [model.__name__ for model in FILLED if not model._default_manager.exists()] == []
    frame = frames.latest(told)
    assert frame is not None
    assert json.dumps(frame).count(SECRET) > 10  # visible to operators
    assert {*frame["instances"]["status"]} > {"failed", "unreachable"}
    assert frame["events"]
    leaks = [address for address, text in served(client, tokens) if SECRET in text or "secret" in text]
    assert leaks == []


def test_an_alert_contains_no_typed_text_but_the_name_of_a_channel(
    told: redis.Redis, client: Client, vera: User
) -> None:
    published(told)
    bearer = {"Authorization": f"Bearer {api_caller(vera).token}"}
    answer = client.get("/metrics", headers=bearer)
    families = text_string_to_metric_families(answer.content.decode())
    samples = [sample for family in families for sample in family.samples]
    labels = {label for sample in samples for label, value in sample.labels.items() if SECRET in value}
    assert labels == {"channel", "key", "name"}  # channels and API keys, for people with a role
    assert {*re.findall(r"\$labels\.(\w+)", ALERTS.read_text())} & labels == {"channel"}
