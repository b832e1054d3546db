from django.urls import path

from controlplane.pages.palette import views

urlpatterns = [path("search", views.find, name="search"), path("help", views.first_minutes, name="help")]
