"""Spans that a collector receives: one for each page and REST call, and for the jobs that they start."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client

from controlplane.base.spans import exporter, tasks
from controlplane.base.spans.exporter import Exporter
from router.spans.settings import SpanSettings

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


class Collector(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[Any] = []

    def spans(self) -> list[dict[str, Any]]:
        return [span for body in self.bodies for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, Exporter]]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        made = Exporter(SpanSettings(url, delay_s=60, ratio=0.0))
        for module in ("middleware", "tasks"):
            monkeypatch.setattr(f"controlplane.base.spans.{module}.exporter", lambda: made)
        yield server, made
        made.end()
        server.shutdown()
        thread.join()


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def message(headers: dict[str, Any], name: str) -> Any:
    request = SimpleNamespace(delivery_info={"routing_key": "control"}, **headers)
    return SimpleNamespace(name=name, request=request)


@pytest.mark.django_db
def test_calls_are_spans_and_tasks_are_children_of_their_callers(
    collector: tuple[Collector, Exporter], vera_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, made = collector
    sent: dict[str, Any] = {}
    monkeypatch.setattr("controlplane.people.audit.views.render", _publishing(sent))
    assert Client().get("/healthz", headers=SAMPLED).status_code in (200, 503)
    assert vera_client.get("/audit/", headers=SAMPLED).status_code == 200
    assert vera_client.get("/audit/").status_code == 200  # not sampled, because only one in a hundred is
    for name, headers, state in (
        ("fleet.start_instance", sent, "FAILURE"),
        ("fleet.stop_instance", {}, "SUCCESS"),  # from a periodic step
    ):
        task = message(headers, name)
        tasks.begin(task_id=name, task=task)
        tasks.end(task_id=name, state=state)
    made.end()
    page, order = server.spans()
    assert (page["name"], page["kind"], page["traceId"], page["parentSpanId"]) == ("GET /audit/", 2, TRACE, SPAN)
    assert attributes(page)["http.response.status_code"] == "200"
    assert (order["name"], order["kind"], order["parentSpanId"]) == ("fleet.start_instance", 5, page["spanId"])
    assert order["status"] == {"code": 2}
    assert attributes(order)["messaging.destination.name"] == "control"


def _publishing(sent: dict[str, Any]) -> Any:
    from django.shortcuts import render

    def publish(*words: Any, **named: Any) -> Any:
        tasks.publish(headers=sent) if not sent else None
        return render(*words, **named)

    return publish


def test_a_job_that_a_step_resends_begins_its_own_trace(collector: tuple[Collector, Exporter]) -> None:
    server, made = collector
    made.sampler.wanted = lambda trace, parent: True  # type: ignore[method-assign]
    tasks.begin(task_id="1", task=message({}, "previews.run"))
    tasks.end(task_id="1", state="SUCCESS")
    made.end()
    (span,) = server.spans()
    assert (span["name"], span.get("parentSpanId"), span["status"]) == ("previews.run", None, {})


def test_when_tracing_is_off_there_is_no_exporter_and_no_middleware(settings: Any) -> None:
    settings.SPANS = None
    exporter.exporter.cache_clear()
    assert exporter.exporter() is None
