from django.urls import path

from controlplane.people.notices import views

urlpatterns = [
    path("notes/", views.note, name="write-note"),
    path("channels/", views.channels, name="channels"),
    path("channels/<int:pk>", views.channel, name="channel"),
    path("channels/<int:pk>/test", views.test, name="test-channel"),
    path("channels/<int:pk>/enable", views.enable, name="enable-channel"),
    path("channels/<int:pk>/rotate", views.rotate, name="rotate-channel"),
    path("channels/<int:pk>/delete", views.delete, name="delete-channel"),
]
