"""Spans of pages, REST and jobs. The router has its own (router/telemetry/tracer.py), which waits for nothing."""
