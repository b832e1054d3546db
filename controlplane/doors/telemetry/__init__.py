"""Prometheus metrics of the control plane, at `/metrics` of the web process. Routers have their own page."""
