from django.urls import path

from controlplane.receipts import views

urlpatterns = [
    path("requests/", views.receipts, name="requests"),
    path("requests/find/", views.find_by_id, name="find-receipt"),
    path("requests/<str:request_id>/", views.receipt, name="receipt"),
]
