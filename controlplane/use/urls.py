from django.urls import path

from controlplane.use import views

urlpatterns = [path("use/", views.use, name="use")]
