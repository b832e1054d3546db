"""Spans of pages, REST and jobs. The router has its own tracer (router/telemetry/tracer.py), which never blocks."""
