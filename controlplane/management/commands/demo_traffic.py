"""manage.py demo_traffic: generated agentic sessions for a fleet that nobody uses yet."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any
from urllib.parse import urlsplit

from django.core.management.base import BaseCommand

from controlplane.evidence.experiments.replay import demo

MAX_SESSIONS = 1_000


def http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise ArgumentTypeError(f"{text!r}: allowed is http://HOST:PORT")
    return text


def session_count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MAX_SESSIONS:
        raise ArgumentTypeError(f"{text!r}: allowed are 1 to {MAX_SESSIONS}")
    return int(text)


class Command(BaseCommand):
    help = "Send endless generated agentic sessions to an OpenAI endpoint; waits while nobody answers; SIGTERM ends it."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", type=http_url, default="http://127.0.0.1:8080", help="the router, or any endpoint")
        parser.add_argument("--sessions", type=session_count, default=demo.SESSIONS, help="sessions at a time")
        parser.add_argument("--seed", type=int, default=1, help="another seed, other sessions")
        parser.add_argument("--model", default="", help="the model to ask for (default: the first that is served)")

    def handle(self, *args: Any, **options: Any) -> None:
        demo.main(options["url"], options["sessions"], options["seed"], options["model"])
