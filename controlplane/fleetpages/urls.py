from django.urls import path

from controlplane.fleetpages import apply_views, views

urlpatterns = [
    path("fleet/", views.index, name="fleet"),
    path("fleet/apply", apply_views.apply_page, name="fleet-apply"),
    path("fleet/pools/<slug:name>/", views.pool_page, name="fleet-pool"),
    path("fleet/instances/<slug:name>/", views.instance_page, name="fleet-instance"),
    path("fleet/instances/<slug:name>/<slug:verb>", views.act, name="fleet-act"),
]
