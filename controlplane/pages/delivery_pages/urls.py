from django.urls import path

from controlplane.pages.delivery_pages import draft_views, freeze_views, views

urlpatterns = [
    path("deliveries/", views.delivery_list, name="deliveries"),
    path("deliveries/try", views.try_one, name="delivery-try"),
    path("deliveries/<int:number>/", views.delivery_page, name="delivery"),
    path("deliveries/<int:number>/live", views.delivery_live, name="delivery-live"),
    path("deliveries/<int:number>/series", views.delivery_series, name="delivery-series"),
    path("deliveries/<int:number>/<slug:verb>", views.act, name="delivery-act"),
    path("freezes/", freeze_views.freezes, name="freezes"),
    path("freezes/<int:number>/remove", freeze_views.remove, name="freeze-remove"),
    path("policies/<slug:name>/draft/deliver", draft_views.deliver, name="draft-deliver"),
    path("policies/<slug:name>/delivery-rules", freeze_views.rules, name="delivery-rules"),
]
