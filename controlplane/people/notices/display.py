"""Masks a channel's URL for pages, REST and the audit log. Pure."""

from urllib.parse import urlsplit

from router.contract.values.secret_text import HIDDEN


def masked_url(url: str) -> str:
    """Return scheme and host of a web address; for other URLs only the scheme, as the host may be a token
    (`slack://TOKEN/…`)."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https"):
        return f"{scheme}://{HIDDEN}"
    parts = urlsplit(url)
    host = parts.hostname or ""
    place = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    more = f"/{HIDDEN}" if rest.partition("/")[2] or parts.query else ""
    return f"{scheme}://{place}{port}{more}"
