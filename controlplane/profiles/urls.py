from django.urls import path

from controlplane.profiles import views

urlpatterns = [path("fleet/profiles/", views.profiles, name="profiles")]
