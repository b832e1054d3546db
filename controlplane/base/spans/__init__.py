"""Spans of pages, REST and jobs. The router has a tracer of its own (router/telemetry/tracer.py), which never
blocks."""
