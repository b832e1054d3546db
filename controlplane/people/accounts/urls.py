from django.urls import path

from controlplane.people.accounts import views
from controlplane.people.accounts.oidc import views as oidc

urlpatterns = [
    path("login", views.sign_in, name="login"),
    path("logout", views.sign_out, name="logout"),
    path("sign-in/<str:token>", views.sign_in_link, name="sign-in-link"),
    path("oidc/login", oidc.begin, name="oidc-login"),
    path("oidc/link", oidc.begin_link, name="oidc-link"),
    path("oidc/callback", oidc.callback, name="oidc-callback"),
    path("oidc/backchannel-logout", oidc.back_channel_logout, name="oidc-backchannel-logout"),
    path("password", views.password, name="password"),
    path("tokens/", views.tokens, name="tokens"),
    path("tokens/<int:pk>/revoke", views.revoke, name="revoke-token"),
    path("users/", views.users, name="users"),
    path("users/<int:pk>", views.change_user, name="change-user"),
]
