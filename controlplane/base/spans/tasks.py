"""Spans of jobs, and of tasks started by a traced request; the message carries the trace. Tasks sent by periodic steps
have none."""

from contextlib import ExitStack
from functools import cache
from typing import Any

from celery import signals
from django.apps import apps

from controlplane.base.spans.current import carried, joined, span
from controlplane.base.spans.exporter import exporter
from fleet.jobs import Job
from router.spans.otlp import Span

HEADER = "traceparent"
_under_way: dict[str, tuple[ExitStack, Span]] = {}  # open spans by task id


def connect() -> None:
    """Connect the signals, once in each process; does nothing while spans are off."""
    if exporter() is not None:
        signals.before_task_publish.connect(publish, weak=False)
        signals.task_prerun.connect(begin, weak=False)
        signals.task_postrun.connect(end, weak=False)


def publish(headers: dict[str, Any] | None = None, **_: Any) -> None:
    header = carried()
    if header is not None and headers is not None:
        headers[HEADER] = header


def begin(task_id: str, task: Any, **_: Any) -> None:
    found, header = exporter(), getattr(task.request, HEADER, None) or ""
    if found is None or not (header or task.name in _jobs()):
        return
    stack = ExitStack()
    made = stack.enter_context(span(found, joined(found, header), "consumer", task.name))
    made.attributes |= {
        "messaging.operation.type": "process",
        "messaging.destination.name": (task.request.delivery_info or {}).get("routing_key"),
        "messaging.message.id": task_id,
    }
    _under_way[task_id] = stack, made


def end(task_id: str, state: str | None = None, **_: Any) -> None:
    if task_id not in _under_way:
        return
    stack, made = _under_way.pop(task_id)
    made.failed = state == "FAILURE"
    made.attributes["error.type"] = "task_failed" if made.failed else None
    stack.close()


@cache
def _jobs() -> frozenset[str]:
    return frozenset(model.TASK for model in apps.get_models() if issubclass(model, Job))
