from django.urls import path

from controlplane.traffic.aliases import views

urlpatterns = [
    path("models/", views.page, name="models"),
    path("models/open", views.open_draft, name="models-open"),
    path("models/draft", views.draft, name="models-draft"),
    path("models/draft/name", views.alias, name="models-alias"),
    path("models/draft/review", views.review, name="models-review"),
    path("models/draft/publish", views.publish, name="models-publish"),
    path("models/draft/discard", views.discard, name="models-discard"),
    path("models/rollback", views.roll_back, name="models-rollback"),
    path("models/versions/<int:number>/", views.version_page, name="models-version"),
]
