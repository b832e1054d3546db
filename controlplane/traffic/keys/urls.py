from django.urls import path

from controlplane.traffic.keys import views

urlpatterns = [
    path("keys/", views.keys, name="keys"),
    path("keys/required", views.require, name="require-keys"),
    path("keys/<int:pk>/revoke", views.revoke, name="revoke-key"),
]
