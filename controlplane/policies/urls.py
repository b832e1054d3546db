from django.urls import path

from controlplane.policies import drafts, views

urlpatterns = [
    path("policies/", views.policy_list, name="policies"),
    path("policies/new", views.create, name="policy-create"),
    path("policies/<slug:name>/", views.policy_page, name="policy"),
    path("policies/<slug:name>/versions/<int:number>/", views.version_page, name="policy-version"),
    path("policies/<slug:name>/compare", views.compare, name="policy-compare"),
    path("policies/<slug:name>/rollback", views.roll_back, name="policy-rollback"),
    path("policies/<slug:name>/draft", drafts.edit, name="draft"),
    path("policies/<slug:name>/draft/open", drafts.open_draft, name="draft-open"),
    path("policies/<slug:name>/draft/autosave", drafts.autosave, name="draft-autosave"),
    path("policies/<slug:name>/draft/watch", drafts.watch, name="draft-watch"),
    path("policies/<slug:name>/draft/review", drafts.review, name="draft-review"),
    path("policies/<slug:name>/draft/publish", drafts.publish, name="draft-publish"),
    path("policies/<slug:name>/draft/discard", drafts.discard, name="draft-discard"),
    path("policies/<slug:name>/draft/settle", drafts.settle, name="draft-settle"),
    path("policies/<slug:name>/draft/resolve", drafts.resolve, name="draft-resolve"),
]
