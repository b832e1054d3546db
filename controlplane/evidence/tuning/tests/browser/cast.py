"""Events on the server while a browser watches."""

from django.utils import timezone

from controlplane.evidence.tuning import running
from controlplane.evidence.tuning.models import Trial, Tuning
from controlplane.evidence.tuning.tests.conftest import OTTO
from controlplane.traffic.policies import services as policy_services
from fleet.jobs import RUNNING
from fleet.models import Pool


def policy(name: str) -> None:
    policy_services.create_policy(name, policy_services.default_document("adaptive_v1"), OTTO, "for one test")
    Pool.objects.create(name=f"{name}-pool", model="llama-3.1-8b", kind="sim", policy=name, replicas=2, engine={})


def worker_begins() -> None:
    """Store what a worker has written after one simulated trial."""
    now = timezone.now()
    Tuning.objects.filter(status="queued").update(status=RUNNING, started_at=now, heartbeat_at=now, done=1)
    goals = {"n": 70, "answered": 70, "ttft_p90_ms": 100.0, "tpot_p90_ms": 10.0, "goodput": 0.9}
    Trial.objects.create(tuning=Tuning.objects.latest("pk"), number=1, values={}, goals=goals)


def worker_computes() -> None:
    """Compute the tuning in the twin."""
    Trial.objects.all().delete()
    Tuning.objects.filter(status=RUNNING).update(status="queued", done=0)
    running.run_tuning(Tuning.objects.latest("pk").pk)
