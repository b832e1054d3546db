from django.urls import path
from django.views.generic import RedirectView

from controlplane.evidence.experiments import views
from controlplane.evidence.experiments.matrix import views as matrix_views
from controlplane.evidence.experiments.start import views as start_views

to_start = RedirectView.as_view(pattern_name="experiment-start", query_string=True, http_method_names=["get", "head"])

urlpatterns = [
    path("experiments/", views.experiment_list, name="experiments"),
    path("experiments/table", views.experiment_table, name="experiment-table"),
    path("experiments/new", start_views.start, name="experiment-start"),
    path("experiments/curl", start_views.curl, name="experiment-curl"),
    path("experiments/compare", views.compare, name="experiment-compare"),
    path("experiments/matrix/new", to_start, name="matrix-start"),
    path("experiments/matrix/<int:number>/", matrix_views.page, name="matrix"),
    path("experiments/matrix/<int:number>/cancel", matrix_views.cancel, name="matrix-cancel"),
    path("experiments/matrix/<int:number>/resume", matrix_views.resume, name="matrix-resume"),
    path("experiments/<int:number>/", views.experiment_page, name="experiment"),
    path("experiments/<int:number>/requests", views.requests_page, name="experiment-requests"),
    path("experiments/<int:number>/progress", views.experiment_progress, name="experiment-progress"),
    path("experiments/<int:number>/repeat", views.repeat, name="experiment-repeat"),
    path("experiments/<int:number>/cancel", views.cancel, name="experiment-cancel"),
]
