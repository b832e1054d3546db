"""The template context of every page: the navigation and the current position in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from controlplane.people.accounts.decorators import may_open

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
    ("/users/", "Users", ""),
    ("/channels/", "Notices", ""),
    ("/shares/", "Shares", ""),
    ("/playground/", "Playground", ""),
    ("/use/", "Use and cost", ""),
    ("/plans/", "Plans", ""),
    ("/batches/", "Batches", ""),
    ("/keys/", "API keys", ""),
    ("/tokens/", "API tokens", ""),
    ("/api/v1/docs", "API reference", ""),
    ("/password", "Change password", ""),
)
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
    return tuple(page for page in ACCOUNT_PAGES if may_open(user, page[0]))


def _links(pages: Iterable[tuple[str, str, str]], path: str) -> list[NavLink]:
    return [
        NavLink(href, label, icon, current=path.startswith(href), exact=path == href) for href, label, icon in pages
    ]
