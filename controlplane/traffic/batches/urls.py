from django.urls import path

from controlplane.traffic.batches import api, views

urlpatterns = [
    path("batches/", views.batches, name="batches"),
    path("batches/<str:name>/cancel", views.cancel, name="cancel-batch"),
    path("v1/files", api.files),
    path("v1/files/<str:name>", api.file),
    path("v1/files/<str:name>/content", api.content),
    path("v1/batches", api.batches),
    path("v1/batches/<str:name>", api.one_batch),
    path("v1/batches/<str:name>/cancel", api.cancel),
]
