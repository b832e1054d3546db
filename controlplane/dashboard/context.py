"""Template context of every page: the navigation and the current position in it."""

from dataclasses import dataclass

from django.http import HttpRequest

from controlplane.permissions import can_administer, can_operate

PAGES = (
    ("/live", "Live"),
    ("/policies/", "Policies"),
    ("/deliveries/", "Deliveries"),
    ("/fleet/", "Fleet"),
    ("/requests/", "Requests"),
    ("/experiments/", "Experiments"),
    ("/systems/", "Systems"),
    ("/audit/", "Audit"),
)
ACCOUNT_PAGES = (("/tokens/", "API tokens"), ("/api/v1/docs", "API reference"), ("/password", "Change password"))
KEYS = ("/keys/", "API keys")  # operators and administrators only
ADMIN_PAGES = (("/users/", "Users"), ("/channels/", "Notices"))  # administrators only


@dataclass(frozen=True, slots=True)
class NavLink:
    href: str
    label: str
    current: bool  # the current page is this one or below it
    exact: bool  # the current page is this one


def navigation(request: HttpRequest) -> dict[str, list[NavLink]]:
    """`account_navigation` is the menu under the user's name."""
    user = getattr(request, "user", None)
    account = (
        *(ADMIN_PAGES if user is not None and can_administer(user) else ()),
        *((KEYS,) if user is not None and can_operate(user) else ()),
        *ACCOUNT_PAGES,
    )
    return {"navigation": _links(PAGES, request.path), "account_navigation": _links(account, request.path)}


def _links(pages: tuple[tuple[str, str], ...], path: str) -> list[NavLink]:
    return [_link(href, label, path) for href, label in pages]


def _link(href: str, label: str, path: str) -> NavLink:
    return NavLink(href, label, current=path.startswith(href), exact=path == href)
