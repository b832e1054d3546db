from django.urls import path

from controlplane.pages.receipts import key_views, views

urlpatterns = [
    path("keys/<int:pk>/", key_views.key, name="key"),
    path("keys/<int:pk>/series", key_views.key_series, name="key-series"),
    path("requests/", views.receipts, name="requests"),
    path("requests/find/", views.find_by_id, name="find-receipt"),
    path("requests/<str:request_id>/", views.receipt, name="receipt"),
]
