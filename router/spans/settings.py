"""Take one of this second's samples; `now` is monotonic seconds. Clients can request samples by `traceparent`, but not
beyond this limit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

SAMPLERS = (
    *("parentbased_traceidratio", "parentbased_always_on", "parentbased_always_off"),
    *("traceidratio", "always_on", "always_off"),
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # name of an HTTP header
LARGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class SpanSettings:
    url: str  # collector's address, with path
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # headers, which may contain a secret
    timeout_s: float = 10.0  # limit for one export
    gzip: bool = False
    resource: Mapping[str, str] = field(default_factory=dict)  # attributes, including service.name
    sampler: str = SAMPLERS[0]
    ratio: float = 0.01  # sampled share of requests without a parent
    per_s: int = 50  # most sampled requests per second, of all clients together
    errors: bool = False  # export failed requests as well
    delay_s: float = 5.0  # between two exports
    most: int = 2048  # most waiting spans
    batch: int = 512  # spans in one export


def read(environ: Mapping[str, str], service: str) -> SpanSettings | None:
    """Read the settings; None: spans are off. `service` names the process unless OTEL_SERVICE_NAME does. Raise
    ValueError with a one-line message."""
    url = _url(environ)
    if url is None or _flag(environ, "OTEL_SDK_DISABLED"):
        return None
    name, protocol = _first(environ, "OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in ("", "http/json"):
        raise ValueError(f"{name}={protocol}: allowed is http/json")
    name, compression = _first(environ, "OTEL_EXPORTER_OTLP_COMPRESSION")
    if compression not in ("", "none", "gzip"):
        raise ValueError(f"{name}={compression}: allowed are none and gzip")
    sampler = environ.get("OTEL_TRACES_SAMPLER") or SAMPLERS[0]
    if sampler not in SAMPLERS:
        raise ValueError(f"OTEL_TRACES_SAMPLER={sampler}: allowed are {', '.join(SAMPLERS)}")
    most = _whole(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    batch = _whole(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(512, most))
    if batch > most:
        raise ValueError(f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE={batch}: allowed are 1 to {most}, the size of the queue")
    timeout_ms = _whole(environ, _first(environ, "OTEL_EXPORTER_OTLP_TIMEOUT")[0], 10_000)
    return SpanSettings(
        url=url,
        headers=_headers(environ),
        timeout_s=min(timeout_ms, _whole(environ, "OTEL_BSP_EXPORT_TIMEOUT", 30_000)) / 1000,
        gzip=compression == "gzip",
        resource=_resource(environ, service),
        sampler=sampler,
        ratio=_ratio(environ),
        per_s=_whole(environ, "WEIR_SPANS_PER_S", 50),
        errors=_flag(environ, "WEIR_SPANS_ERRORS"),
        delay_s=_whole(environ, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
        most=most,
        batch=batch,
    )


def _first(environ: Mapping[str, str], general: str) -> tuple[str, str]:
    """Return name and value of the variable for traces, or of the general variable if that is not set."""
    for name in (general.replace("_OTLP_", "_OTLP_TRACES_"), general):
        if environ.get(name):
            return name, environ[name].strip()
    return general, ""


def _url(environ: Mapping[str, str]) -> str | None:
    name, url = _first(environ, "OTEL_EXPORTER_OTLP_ENDPOINT")
    exporter = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if exporter not in ("otlp", "none"):
        raise ValueError(f"OTEL_TRACES_EXPORTER={exporter}: allowed are otlp and none")
    if not url or exporter == "none":
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment or not url.isascii() or " " in url:
        raise ValueError(f"{name}: allowed is http[s]://HOST[:PORT][/PATH], without user, query and fragment")
    return url if name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" else url.rstrip("/") + "/v1/traces"


def _pairs(name: str, text: str) -> list[tuple[str, str]]:
    """Parse KEY=VALUE,KEY=VALUE, percent-encoded; errors do not repeat the values."""
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{name}: allowed are KEY=VALUE pairs with commas between them")
        found.append((key.strip(), unquote(value.strip())))
    return found


def _headers(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    name, text = _first(environ, "OTEL_EXPORTER_OTLP_HEADERS")
    pairs = _pairs(name, text)
    for key, value in pairs:
        if _NAME.fullmatch(key) is None or not value.isprintable() or not value.isascii():
            raise ValueError(f"{name}: {key!r} is not a header with a value of printable ASCII characters")
    return tuple(pairs)


def _resource(environ: Mapping[str, str], service: str) -> Mapping[str, str]:
    given = dict(_pairs("OTEL_RESOURCE_ATTRIBUTES", environ.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    return {"service.name": service, **given, **_named(environ.get("OTEL_SERVICE_NAME", ""))}


def _named(service: str) -> Mapping[str, str]:
    return {"service.name": service} if service else {}


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value not in ("", "0", "1", "true", "false"):
        raise ValueError(f"{name}={value}: allowed are true, false, 1 and 0")
    return value in ("1", "true")


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "").strip()
    if not value:
        return default
    if not value.isdecimal() or not value.isascii() or not 1 <= int(value[:10]) <= LARGEST or len(value) > 10:
        raise ValueError(f"{name}={value[:40]}: allowed are whole numbers from 1 to {LARGEST}")
    return int(value)


def _ratio(environ: Mapping[str, str]) -> float:
    value = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    try:
        ratio = float(value) if value else 0.01
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG={value[:40]}: allowed are 0 to 1")
    return ratio
