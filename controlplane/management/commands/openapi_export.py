"""`manage.py openapi_export [--check]`: the committed copy of the API's contract, docs/openapi.json."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.doors.api.api import api

COPY = Path(settings.BASE_DIR) / "docs" / "openapi.json"


def document() -> str:
    return json.dumps(api.get_openapi_schema(), indent=2, sort_keys=True, default=str) + "\n"


def schema() -> Any:
    return json.loads(document())


class Command(BaseCommand):
    help = "Write the OpenAPI document to docs/openapi.json; with --check, fail when the copy there is not current."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        current = document()
        if not options["check"]:
            COPY.parent.mkdir(parents=True, exist_ok=True)
            COPY.write_text(current)
            self.stdout.write(f"{COPY} written")
        elif not COPY.exists() or COPY.read_text() != current:
            raise CommandError(f"{COPY} is not current; run `manage.py openapi_export` and commit it")
