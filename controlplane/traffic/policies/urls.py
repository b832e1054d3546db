from django.urls import path

from controlplane.traffic.policies import views
from controlplane.traffic.policies.drafts import views as draft_views

urlpatterns = [
    path("policies/", views.policy_list, name="policies"),
    path("policies/new", views.create, name="policy-create"),
    path("policies/<slug:name>/", views.policy_page, name="policy"),
    path("policies/<slug:name>/versions/<int:number>/", views.version_page, name="policy-version"),
    path("policies/<slug:name>/compare", views.compare, name="policy-compare"),
    path("policies/<slug:name>/rollback", views.roll_back, name="policy-rollback"),
    path("policies/<slug:name>/draft", draft_views.edit, name="draft"),
    path("policies/<slug:name>/draft/open", draft_views.open_draft, name="draft-open"),
    path("policies/<slug:name>/draft/autosave", draft_views.autosave, name="draft-autosave"),
    path("policies/<slug:name>/draft/watch", draft_views.watch, name="draft-watch"),
    path("policies/<slug:name>/draft/review", draft_views.review, name="draft-review"),
    path("policies/<slug:name>/draft/publish", draft_views.publish, name="draft-publish"),
    path("policies/<slug:name>/draft/discard", draft_views.discard, name="draft-discard"),
    path("policies/<slug:name>/draft/settle", draft_views.settle, name="draft-settle"),
    path("policies/<slug:name>/draft/resolve", draft_views.resolve, name="draft-resolve"),
]
