from django.urls import path

from controlplane.evidence.profiles import views

urlpatterns = [path("fleet/profiles/", views.profiles, name="profiles")]
