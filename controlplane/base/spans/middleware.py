"""The middleware that opens a span for each page and each REST call."""

from collections.abc import Callable

from django.core.exceptions import MiddlewareNotUsed
from django.http import HttpRequest, HttpResponseBase

from controlplane.base.spans.current import joined, span
from controlplane.base.spans.exporter import exporter

SKIPPED = ("/healthz", "/metrics")  # polled by machines all the time


class Spans:
    """Opens a span per request; must come after the middleware that gives requests their ids."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        found = exporter()
        if found is None:
            raise MiddlewareNotUsed
        self.exporter = found
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path in SKIPPED:
            return self.get_response(request)
        parent = joined(self.exporter, request.headers.get("traceparent", ""))
        with span(self.exporter, parent, "server", "") as made:
            response = self.get_response(request)
            match = request.resolver_match
            if match is None:  # a static file, or a request that was refused before any view
                return response
            route = f"/{match.route}"
            made.name = f"{request.method} {route}"
            made.state = request.headers.get("tracestate", "")[:512] if parent.span else ""
            made.failed = response.status_code >= 500
            made.attributes |= {
                "http.request.method": request.method,
                "http.route": route,
                "http.response.status_code": response.status_code,
                "error.type": str(response.status_code) if made.failed else None,
                "weir.request_id": getattr(request, "request_id", None),
            }
        return response
