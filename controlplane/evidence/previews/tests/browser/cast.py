"""Events on the server while a browser watches: steps of the worker, actions of other people, ready-made rows."""

from django.utils import timezone

from controlplane.evidence.previews import running
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.tests.ready_made import metric, preview, result
from controlplane.evidence.previews.tests.rows import preview_of
from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.models import Policy
from fleet.jobs import DONE, RUNNING
from fleet.models import Pool

OTTO = Actor("user", "otto")


def drafted(name: str) -> None:
    policy = policy_services.create_policy(
        name, policy_services.default_document("adaptive_v1"), OTTO, "for one test"
    ).version
    Pool.objects.create(name=f"{name}-pool", model="llama-3.1-8b", kind="sim", policy=name, replicas=2, engine={})
    policy_services.open_draft(policy.policy, OTTO)
    policy_services.patch_draft(policy.policy, {"classes.heavy_new_tokens": 9000}, OTTO)


def previewed(name: str, trust: str = "") -> None:
    """Store a preview of the current draft, with a result and optionally a reason to doubt it."""
    doubts = [{"code": "few_requests", "text": trust}] if trust else []
    preview_of(policies.open_draft(Policy.objects.get(name=name)), trust=doubts)


def barely_better(name: str) -> None:
    """Store a preview whose E2E p50 is better alone, but not after the correction for two declared metrics."""
    barely = metric("e2e_p50_ms", 3000.0, 2700.0, 290.0)
    assert barely["verdict"] == "better"
    found = result()
    found["classes"]["all"]["metrics"] = [
        barely if each["metric"] == "e2e_p50_ms" else each for each in found["classes"]["all"]["metrics"]
    ]
    preview_of(policies.open_draft(Policy.objects.get(name=name)), result=found)


def worker_begins(name: str) -> None:
    """Store what a worker has written halfway through: progress and the first answer."""
    queued = Preview.objects.filter(policy__name=name, status="queued")
    now = timezone.now()
    for each in queued:
        values = {"status": RUNNING, "started_at": now, "heartbeat_at": now, "done": each.total // 2}
        values["first_result"] = {key: value for key, value in result().items() if key not in ("canary", "saving")}
        queued.filter(pk=each.pk).update(**values)


def worker_computes(name: str) -> None:
    """Compute the preview in the twin, skipping what earlier tests left in the queue."""
    Preview.objects.exclude(policy__name=name).filter(status="queued").update(status="cancelled")
    Preview.objects.filter(policy__name=name, status=RUNNING).update(status="queued")
    running.run_preview(Preview.objects.filter(policy__name=name).latest("pk").pk)


def worker_ends(name: str) -> None:
    """End the preview with a ready-made result."""
    now = timezone.now()
    values = {"status": DONE, "started_at": now, "ended_at": now, "result": result(), "twin": preview()["twin"]}
    Preview.objects.filter(policy__name=name, status="queued").update(**values)


def worker_fails(name: str, cause: str) -> None:
    Preview.objects.filter(policy__name=name).update(status="failed", cause=cause, ended_at=timezone.now())
