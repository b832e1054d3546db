"""The heartbeat of a preview: tells how far it is, and hears that somebody wants it to stop."""

import time

from django.utils import timezone

from controlplane.previews.models import RUNNING, Preview

BEAT_S = 0.5
LOST_S = 15.0  # a preview that has not been heard of for so long has lost its worker


class PreviewStopped(Exception):
    """It is no longer wanted: it was cancelled, or the reaper took it for lost."""


class PreviewHeartbeat:
    """Called often while it is computed; writes every BEAT_S."""

    def __init__(self, preview_id: int) -> None:
        self._running = Preview.objects.filter(pk=preview_id, status=RUNNING)
        self._written = 0.0

    def beat(self, done: int) -> None:
        """Raises Stopped."""
        if time.monotonic() - self._written < BEAT_S:
            return
        self._written = time.monotonic()
        if not self._running.update(done=done, heartbeat_at=timezone.now()):
            raise PreviewStopped
