from django.urls import path

from controlplane.pages.playground import views

urlpatterns = [path("playground/", views.playground, name="playground")]
