from django.urls import path

from controlplane.people.audit import views

urlpatterns = [path("audit/", views.audit_log, name="audit")]
