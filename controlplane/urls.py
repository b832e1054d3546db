"""Every page and the REST API."""

from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from controlplane import health
from controlplane.api.api import api
from controlplane.api.reference.page import reference
from controlplane.telemetry.views import metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(url="/live")),
    path("healthz", health.healthz),
    path("metrics", metrics),
    path("api/v1/docs", reference),
    path("api/v1/", api.urls),
    # Each area keeps its own urls.py; the paths in it begin at the root.
    path("", include("controlplane.accounts.urls")),
    path("", include("controlplane.keys.urls")),
    path("", include("controlplane.use.urls")),
    path("", include("controlplane.batches.urls")),
    path("", include("controlplane.notices.urls")),
    path("", include("controlplane.audit.urls")),
    path("", include("controlplane.policies.urls")),
    path("", include("controlplane.aliases.urls")),
    path("", include("controlplane.previews.urls")),
    path("", include("controlplane.tuning.urls")),
    path("", include("controlplane.delivery_pages.urls")),
    path("", include("controlplane.dashboard.urls")),
    path("", include("controlplane.shares.urls")),
    path("", include("controlplane.receipts.urls")),
    path("", include("controlplane.profiles.urls")),
    path("", include("controlplane.fleet_pages.urls")),
    path("", include("controlplane.experiments.urls")),
    path("", include("controlplane.traces.urls")),
    path("", include("controlplane.systems.urls")),
    path("", include("controlplane.palette.urls")),
    path("", include("controlplane.cli.urls")),
]

handler400 = "controlplane.errors.bad_request"
handler403 = "controlplane.errors.forbidden"
handler404 = "controlplane.errors.not_found"
handler500 = "controlplane.errors.server_error"
