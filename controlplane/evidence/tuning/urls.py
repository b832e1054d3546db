from django.urls import path

from controlplane.evidence.tuning import views

urlpatterns = [
    path("policies/<slug:name>/tunings/", views.tunings_page, name="tunings"),
    path("policies/<slug:name>/tunings/<int:number>/", views.tuning_page, name="tuning"),
    path("policies/<slug:name>/tunings/<int:number>/state", views.state, name="tuning-state"),
    path("policies/<slug:name>/tunings/<int:number>/cancel", views.cancel, name="tuning-cancel"),
    path("policies/<slug:name>/tunings/<int:number>/resume", views.resume, name="tuning-resume"),
    path("policies/<slug:name>/tunings/<int:number>/draft", views.draft, name="tuning-draft"),
]
