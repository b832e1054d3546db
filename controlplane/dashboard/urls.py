from django.urls import path

from controlplane.dashboard import views
from controlplane.receipts import views as receipt_views

urlpatterns = [
    path("live", views.live, name="live"),
    path("wall", views.wall, name="wall"),
    path("requests/", receipt_views.receipts, name="requests"),
    path("requests/find/", receipt_views.find_by_id, name="find-receipt"),
    path("requests/<str:request_id>/", receipt_views.receipt, name="receipt"),
]
