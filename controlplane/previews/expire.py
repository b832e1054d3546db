"""What nobody else would notice: previews whose worker died, previews whose message got lost."""

from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.previews import services
from controlplane.previews.heartbeat import LOST_S
from controlplane.previews.models import FAILED, RUNNING, Preview

SENT_AGAIN_S = 10.0


def step(now: datetime | None = None) -> None:
    """One look at everything."""
    fail_lost(now or timezone.now())
    services.send_next(timedelta(seconds=SENT_AGAIN_S))


def fail_lost(now: datetime) -> None:
    """One that is not heard of ends failed: no page waits for it for ever."""
    for preview in Preview.objects.filter(status=RUNNING, heartbeat_at__lt=now - timedelta(seconds=LOST_S)):
        silent = (now - (preview.heartbeat_at or now)).total_seconds()
        cause = f"worker lost: nothing was heard of it for {silent:.0f} s; preview again"
        services.end(preview.pk, FAILED, cause)
