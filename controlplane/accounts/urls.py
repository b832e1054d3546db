from django.urls import path

from controlplane.accounts import views

urlpatterns = [
    path("login", views.sign_in, name="login"),
    path("logout", views.sign_out, name="logout"),
    path("password", views.password, name="password"),
    path("tokens/", views.tokens, name="tokens"),
    path("tokens/<int:pk>/revoke", views.revoke, name="revoke-token"),
    path("users/", views.users, name="users"),
    path("users/<int:pk>", views.change_user, name="change-user"),
]
