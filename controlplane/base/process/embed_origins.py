"""The origins whose pages may frame a shared wall (WEIR_EMBED_ORIGINS)."""

from urllib.parse import urlsplit

from controlplane.base.process import env
from controlplane.base.process.env import BadSetting

NAME = "WEIR_EMBED_ORIGINS"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def read() -> list[str]:
    origins = env.words("WEIR_EMBED_ORIGINS")
    for origin in origins:
        if not _is_origin(origin):
            raise BadSetting(
                f"{NAME}={origin}: allowed are origins, https://HOST or https://HOST:PORT, http on loopback only"
            )
    return [origin.rstrip("/").lower() for origin in origins]


def _is_origin(text: str) -> bool:
    """Reject text that could end or widen the directive: wildcards, paths and lists."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    if set(text) & set(" ;,'\"*\\@?#") or not text.isascii() or parts.path not in ("", "/"):
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))
