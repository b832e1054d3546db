"""Sends the spans of this process to the collector, from a separate thread."""

import atexit
import threading
import time
import zlib
from collections import Counter
from functools import cache

import structlog
from django.conf import settings

from fleet.jobs import process_identity
from router.contract.installation import VERSION
from router.contract.net.outgoing import tls
from router.spans import otlp
from router.spans.otlp import Span
from router.spans.outbox import Outbox
from router.spans.sampler import Sampler
from router.spans.settings import SpanSettings

log = structlog.get_logger(__name__)

SCOPE = "weir.controlplane"
WARN_S = 60.0


class Exporter:
    def __init__(self, chosen: SpanSettings) -> None:
        self._settings = chosen
        self._resource = {
            "service.instance.id": process_identity.own(),
            "service.version": VERSION,
            **chosen.resource,
        }
        self._outbox = Outbox(chosen.most, chosen.batch, Counter())
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = -WARN_S
        self.sampler = Sampler(chosen)

    def add(self, span: Span) -> None:
        encoded = otlp.encoded(span)
        with self._lock:
            self._outbox.add(encoded)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
                self._thread.start()
                atexit.register(self.end)

    def end(self) -> None:
        """Export once more and stop."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._ending.wait(self._settings.delay_s):
            self._send()
        self._send()

    def _send(self) -> None:
        while True:
            with self._lock:
                batch = self._outbox.take(time.monotonic())
            if not batch:
                return
            status, answer, after, why = self._post(otlp.request(self._resource, SCOPE, VERSION, batch))
            with self._lock:
                if status:
                    self._outbox.answered(status, answer, after, time.monotonic())
                else:
                    self._outbox.unanswered(time.monotonic())
            if why and time.monotonic() - self._warned >= WARN_S:
                self._warned = time.monotonic()
                log.warning("spans.lost", collector=self._settings.url, why=why, **self._outbox.results)

    def _post(self, body: bytes) -> tuple[int, bytes, str, str]:
        """Return (status or 0, answer, Retry-After, error)."""
        import httpx  # imported only if spans are on

        headers = [("content-type", "application/json"), *self._settings.headers]
        if self._settings.gzip:
            made = zlib.compressobj(1, wbits=31)
            body = made.compress(body) + made.flush()
            headers.append(("content-encoding", "gzip"))
        try:
            with httpx.Client(verify=tls(), trust_env=False, timeout=self._settings.timeout_s) as client:
                answer = client.post(self._settings.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            return 0, b"", "", str(error) or type(error).__name__
        why = f"it answered {answer.status_code}" if answer.status_code >= 300 else ""
        return answer.status_code, answer.content, answer.headers.get("retry-after", ""), why


@cache
def exporter() -> Exporter | None:
    """Return the exporter; None if spans are off."""
    chosen: SpanSettings | None = settings.SPANS
    return Exporter(chosen) if chosen is not None else None
