from django.urls import path

from controlplane.pages.fleet_pages import (
    adopt_views,
    apply_views,
    calibrations,
    lifecycle_views,
    node_views,
    pool_form_views,
    views,
)

urlpatterns = [
    path("fleet/", views.index, name="fleet"),
    path("fleet/apply", apply_views.apply_page, name="fleet-apply"),
    path("fleet/adopt", adopt_views.adopt, name="fleet-adopt"),
    path("fleet/new-pool", pool_form_views.new_pool, name="fleet-new-pool"),
    path("fleet/pools/<slug:name>/edit", pool_form_views.edit_pool, name="fleet-edit-pool"),
    path("fleet/pools/<slug:name>/", views.pool_page, name="fleet-pool"),
    path("fleet/pools/<slug:name>/scale", lifecycle_views.scale, name="fleet-scale"),
    path("fleet/pools/<slug:name>/mode/<slug:mode>", lifecycle_views.set_mode, name="fleet-mode"),
    path("fleet/pools/<slug:name>/rollback", lifecycle_views.roll_back, name="fleet-rollback"),
    path("fleet/pools/<slug:name>/resume", lifecycle_views.resume, name="fleet-resume"),
    path("fleet/nodes/", node_views.index, name="fleet-nodes"),
    path("fleet/nodes/<slug:name>/", node_views.node_page, name="fleet-node"),
    path("fleet/nodes/<slug:name>/forget", node_views.forget, name="fleet-node-forget"),
    path("fleet/nodes/<slug:name>/<slug:verb>", node_views.act, name="fleet-node-act"),
    path("fleet/instances/<slug:name>/", views.instance_page, name="fleet-instance"),
    path("fleet/instances/<slug:name>/calibrate", calibrations.calibrate, name="fleet-calibrate"),
    path(
        "fleet/instances/<slug:name>/calibrate-from-traffic",
        calibrations.calibrate,
        {"source": "traffic"},
        name="fleet-calibrate-from-traffic",
    ),
    path("fleet/instances/<slug:name>/calibration/cancel", calibrations.cancel, name="fleet-calibration-cancel"),
    path("fleet/instances/<slug:name>/<slug:verb>", views.act, name="fleet-act"),
]
