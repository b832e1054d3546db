"""structlog through the standard library's handlers: events with fields, as JSON or readable lines."""

import logging
from typing import Any

import structlog

from router.contract.values.secret_text import MaskingFormatter

SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
QUIET = {
    # These loggers write a line per task run, which is every second; the tasks record their changes themselves.
    "celery.worker.strategy": {"level": "WARNING"},
    "celery.app.trace": {"level": "WARNING"},
    "celery.beat": {"level": "WARNING"},
    # httpx writes a line per request of a calibration.
    "httpx": {"level": "WARNING"},
    # A rejected request is explained in its response; crashes have their own events.
    "django.request": {"level": "ERROR"},
    "django.security": {"level": "CRITICAL"},  # With a traceback for each, strangers could fill the disk.
}


def config(level: str, form: str) -> dict[str, Any]:
    """Return Django's LOGGING; `form` is "json" or "console"."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structlog": {"()": formatter, "form": form}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structlog"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": QUIET,
    }


def formatter(form: str) -> logging.Formatter:
    if form == "json":
        last: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        last = [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    inner = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    return MaskingFormatter(inner)
