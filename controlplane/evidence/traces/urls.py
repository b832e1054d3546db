from django.urls import path

from controlplane.evidence.traces import views

urlpatterns = [
    path("experiments/traces/", views.traces, name="traces"),
]
