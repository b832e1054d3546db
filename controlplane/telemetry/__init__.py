"""What the pages show, for Prometheus: `/metrics` of the web process. Routers have a page of their own."""
