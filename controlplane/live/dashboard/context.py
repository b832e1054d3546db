"""The template context of every page: the navigation and the current position in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from controlplane.people.permissions import can_administer, can_operate

PAGES = (
    ("/live", "Live", "activity"),
    ("/policies/", "Policies", "scroll-text"),
    ("/deliveries/", "Deliveries", "rocket"),
    ("/models/", "Models", "layers"),
    ("/fleet/", "Fleet", "server"),
    ("/requests/", "Requests", "list"),
    ("/experiments/", "Experiments", "flask-conical"),
    ("/systems/", "Systems", "cpu"),
    ("/audit/", "Audit", "shield-check"),
)
ACCOUNT_PAGES = (
    ("/tokens/", "API tokens", ""),
    ("/api/v1/docs", "API reference", ""),
    ("/password", "Change password", ""),
)
OPERATOR_PAGES = (
    ("/playground/", "Playground", ""),
    ("/use/", "Use and cost", ""),
    ("/plans/", "Plans", ""),
    ("/batches/", "Batches", ""),
    ("/keys/", "API keys", ""),
)  # for operators and administrators only
ADMIN_PAGES = (
    ("/users/", "Users", ""),
    ("/channels/", "Notices", ""),
    ("/shares/", "Shares", ""),
)  # for administrators only
HELP = ("/help", "First minutes", "circle-help")


@dataclass(frozen=True, slots=True)
class NavLink:
    href: str
    label: str
    icon: str  # name in static/img/icons.svg
    current: bool  # True if the current page is this one or below it
    exact: bool  # True if the current page is this one


def navigation(request: HttpRequest) -> dict[str, list[NavLink]]:
    """Return the navigation; `account_navigation` is the menu under the user's name."""
    account = account_pages(getattr(request, "user", None))
    return {"navigation": _links(PAGES, request.path), "account_navigation": _links(account, request.path)}


def account_pages(user: Any) -> tuple[tuple[str, str, str], ...]:
    """Return the account pages that the user may open."""
    return (
        *(ADMIN_PAGES if user is not None and can_administer(user) else ()),
        *(OPERATOR_PAGES if user is not None and can_operate(user) else ()),
        *ACCOUNT_PAGES,
    )


def _links(pages: Iterable[tuple[str, str, str]], path: str) -> list[NavLink]:
    return [
        NavLink(href, label, icon, current=path.startswith(href), exact=path == href) for href, label, icon in pages
    ]
