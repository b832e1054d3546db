"""Sends through Apprise, an optional package for over a hundred services, each with its own kinds of URLs
(requirements-notices.txt)."""

import importlib
import importlib.util
import logging
from typing import Any
from urllib.parse import urlsplit

from controlplane.people.notices.errors import Unsendable
from controlplane.people.notices.senders.addresses import reach
from router.contract.net.outgoing import BeyondReach, resolve
from router.contract.values.problem import invalid

# These schemes post to any address (which a webhook channel does with a signature and limits) or act on this machine.
REFUSED = frozenset({"json", "xml", "form", "dbus", "glib", "gnome", "kde", "qt", "macosx", "windows", "syslog"})
MISSING = "Apprise is not installed: pip install --require-hashes -r requirements-notices.txt"
URL_MAX = 2_000


def check(url: str) -> None:
    """Check a URL. Raise InvalidInput without the URL, because it contains tokens."""
    scheme = url.partition("://")[0].lower()
    if len(url) > URL_MAX or "://" not in url or not url.isprintable():
        raise invalid("url", None, "is not an Apprise URL", f"SERVICE://…, at most {URL_MAX:,} characters")
    if scheme.rstrip("s") in REFUSED or scheme in REFUSED:
        raise invalid("url", None, f"{scheme}:// is not allowed", "use a webhook to post to an address")
    if not is_installed():
        raise invalid("kind", "apprise", MISSING)
    if _load().Apprise.instantiate(url, suppress_exceptions=True) is None:
        raise invalid("url", None, "Apprise does not understand this URL", "see appriseit.com/services")


def is_installed() -> bool:
    return importlib.util.find_spec("apprise") is not None


def _load() -> Any:
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it logs URLs that it cannot parse
    return importlib.import_module("apprise")


async def send(url: str, title: str, text: str) -> str:
    """Send a text and return the outcome. Raise Unsendable."""
    if not is_installed():
        raise Unsendable(MISSING)
    await _check_host(url)
    target = _load().Apprise()
    if not target.add(url):
        raise Unsendable("Apprise does not understand the URL of this channel")
    if not await target.async_notify(title=title, body=text):
        raise Unsendable("Apprise could not send it; the service refused or did not answer")
    return "sent by Apprise"


async def _check_host(url: str) -> None:
    """Refuse a host that resolves to a private address. Often the host is a token, which does not resolve."""
    host = urlsplit(url).hostname
    if not host:
        return
    try:
        await resolve(host, 0, reach())
    except BeyondReach as error:
        raise Unsendable(f"the host is out of reach: {error.strerror}") from None
    except OSError:
        return
