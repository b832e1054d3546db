from django.urls import path, re_path

from controlplane.pages.shares import views

urlpatterns = [
    path("shares/", views.shares, name="shares"),
    path("shares/<int:pk>/revoke", views.revoke, name="revoke-share"),
    path("wall/s/<str:token>", views.wall, name="shared-wall"),
    re_path(r"^badge/(?P<token>[\w-]+)/(?P<pool>[^/]+)\.(?P<form>svg|json|shields)$", views.badge, name="badge"),
]
