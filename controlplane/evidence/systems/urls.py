from django.urls import path

from controlplane.evidence.systems import views

urlpatterns = [
    path("systems/", views.systems, name="systems"),
    path("systems/<slug:slug>/", views.system, name="system"),
    path("systems/<slug:slug>/figures/", views.published, name="system-figures"),
]
