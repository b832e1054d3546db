"""Every page and the REST API."""

from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from controlplane.doors import health
from controlplane.doors.api.api import api
from controlplane.doors.api.reference.page import reference
from controlplane.doors.telemetry.views import metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(url="/live")),
    path("healthz", health.healthz),
    path("metrics", metrics),
    path("api/v1/docs", reference),
    path("api/v1/", api.urls),
    # Each area has its own urls.py, whose paths begin at the root.
    path("", include("controlplane.people.accounts.urls")),
    path("", include("controlplane.traffic.keys.urls")),
    path("", include("controlplane.traffic.use.urls")),
    path("", include("controlplane.traffic.batches.urls")),
    path("", include("controlplane.people.notices.urls")),
    path("", include("controlplane.people.audit.urls")),
    path("", include("controlplane.traffic.policies.urls")),
    path("", include("controlplane.traffic.aliases.urls")),
    path("", include("controlplane.evidence.previews.urls")),
    path("", include("controlplane.evidence.tuning.urls")),
    path("", include("controlplane.pages.delivery_pages.urls")),
    path("", include("controlplane.live.dashboard.urls")),
    path("", include("controlplane.pages.shares.urls")),
    path("", include("controlplane.pages.receipts.urls")),
    path("", include("controlplane.pages.playground.urls")),
    path("", include("controlplane.evidence.profiles.urls")),
    path("", include("controlplane.pages.fleet_pages.urls")),
    path("", include("controlplane.evidence.experiments.urls")),
    path("", include("controlplane.evidence.traces.urls")),
    path("", include("controlplane.evidence.planning.urls")),
    path("", include("controlplane.evidence.systems.urls")),
    path("", include("controlplane.pages.palette.urls")),
    path("", include("controlplane.doors.cli.urls")),
]

handler400 = "controlplane.doors.errors.bad_request"
handler403 = "controlplane.doors.errors.forbidden"
handler404 = "controlplane.doors.errors.not_found"
handler500 = "controlplane.doors.errors.server_error"
