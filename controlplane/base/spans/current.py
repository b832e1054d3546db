"""The current span of this thread, and functions that begin a span below it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from controlplane.base.spans.exporter import Exporter
from router.spans import context
from router.spans.context import Parent
from router.spans.otlp import Kind, Span

current: ContextVar[Parent | None] = ContextVar("current_span", default=None)


def joined(exporter: Exporter, header: str) -> Parent:
    """Return the caller's trace, or a new trace with an empty span."""
    parent = context.parse(header.encode("latin-1", "replace"))
    trace = parent.trace if parent is not None else context.new_trace()
    sampled = exporter.sampler.wanted(trace, parent) and exporter.sampler.allowed(time.monotonic())
    return Parent(trace, parent.span if parent is not None else "", sampled)


@contextmanager
def span(exporter: Exporter, parent: Parent, kind: Kind, name: str) -> Iterator[Span]:
    """Open a span, which is exported at its end if its trace is sampled; until then, name and attributes may be set."""
    made = Span(name, kind, parent.trace, context.span_id(context.new_base(), 0), time.time(), 0.0, parent.span)
    made.remote = bool(parent.span)
    token = current.set(Parent(parent.trace, made.id, parent.sampled))
    began = time.perf_counter()
    try:
        yield made
    except BaseException as error:
        made.failed = True
        made.attributes["error.type"] = type(error).__name__
        raise
    finally:
        current.reset(token)
        made.ended = made.began + time.perf_counter() - began
        if parent.sampled and made.name:
            exporter.add(made)


def carried() -> str | None:
    """Return a `traceparent` header for work that this thread starts in another process."""
    here = current.get()
    return context.header(here.trace, here.span, sampled=here.sampled).decode() if here is not None else None
