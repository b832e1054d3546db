"""What every page's frame shows: the navigation and where the reader is in it."""

from dataclasses import dataclass

from django.http import HttpRequest

PAGES = (
    ("/live", "Live"),
    ("/policies/", "Policies"),
    ("/fleet/", "Fleet"),
    ("/requests/", "Requests"),
    ("/experiments/", "Experiments"),
    ("/audit/", "Audit"),
)


@dataclass(frozen=True, slots=True)
class Link:
    href: str
    label: str
    current: bool  # the page is here or below
    exact: bool  # the page is here


def navigation(request: HttpRequest) -> dict[str, list[Link]]:
    return {"navigation": [_link(href, label, request.path) for href, label in PAGES]}


def _link(href: str, label: str, path: str) -> Link:
    return Link(href, label, current=path.startswith(href), exact=path == href)
