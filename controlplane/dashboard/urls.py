from django.urls import path

from controlplane.dashboard import views

urlpatterns = [path("live", views.live, name="live"), path("wall", views.wall, name="wall")]
