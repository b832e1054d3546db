from django.urls import path

from controlplane.live.dashboard import views

urlpatterns = [
    path("live", views.live, name="live"),
    path("live/banners", views.banners, name="live-banners"),
    path("live/series", views.load_series, name="load-series"),
    path("wall", views.wall, name="wall"),
]
