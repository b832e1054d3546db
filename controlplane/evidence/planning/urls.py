from django.urls import path

from controlplane.evidence.planning import views

urlpatterns = [
    path("plans/", views.plans, name="plans"),
    path("plans/<int:number>/", views.plan_page, name="plan"),
    path("plans/<int:number>/state", views.state, name="plan-state"),
    path("plans/<int:number>/cancel", views.cancel, name="plan-cancel"),
    path("plans/<int:number>/draft", views.draft, name="plan-draft"),
]
