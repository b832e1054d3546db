from django.urls import path

from controlplane.cli import views

urlpatterns = [
    path("cli/weir", views.command, name="cli"),
]
