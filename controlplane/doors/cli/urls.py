from django.urls import path

from controlplane.doors.cli import views

urlpatterns = [
    path("cli/weir", views.command, name="cli"),
]
