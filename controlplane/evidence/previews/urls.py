from django.urls import path

from controlplane.evidence.previews import views

urlpatterns = [
    path("policies/<slug:name>/draft/preview", views.start, name="draft-preview"),
    path("policies/<slug:name>/draft/preview/state", views.draft_state, name="draft-preview-state"),
    path("policies/<slug:name>/previews/<int:number>/", views.preview_page, name="preview"),
    path("policies/<slug:name>/previews/<int:number>/state", views.state, name="preview-state"),
    path("policies/<slug:name>/previews/<int:number>/cancel", views.cancel, name="preview-cancel"),
]
