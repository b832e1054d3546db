"""Checks the URL of a webhook before it is stored."""

from urllib.parse import urlsplit

from controlplane.people.notices.senders.addresses import reach
from router.contract.net.addresses import literal, refusal
from router.contract.problem import InvalidInput, invalid

URL_MAX = 2_000


def check(url: str) -> None:
    """Check a URL. Raises InvalidInput, which does not repeat the URL, as it may hold a token."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid("is not a URL") from None
    if len(url) > URL_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise _invalid(f"must be printable ASCII without spaces, at most {URL_MAX:,} characters")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _invalid("must begin with https:// or http:// and a host")
    if parts.username is not None or parts.fragment:
        raise _invalid("must have neither a user name nor a fragment")
    address = literal(parts.hostname)
    why = refusal(address, reach()) if address is not None else ""
    if why:
        raise _invalid(f"leads out of reach: {why}")


def _invalid(message: str) -> InvalidInput:
    return invalid("url", None, message, "https://HOST/PATH")
