from django.urls import path

from controlplane.traffic.use import views

urlpatterns = [
    path("use/", views.use, name="use"),
    path("use/budgets/add", views.add_budget, name="add-budget"),
    path("use/budgets/<int:pk>/delete", views.delete_budget, name="delete-budget"),
]
