"""Prometheus metrics of the control plane: `/metrics` of the web process. Routers have a separate page."""
