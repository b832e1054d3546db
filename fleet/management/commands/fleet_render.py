import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fleet.spec import document
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import FleetSpec, InvalidFleet, parse_fleet


class Command(BaseCommand):
    help = "Print the Kubernetes objects of a fleet document as YAML, without a cluster."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="the fleet document, YAML or JSON; - reads standard input")
        parser.add_argument("--namespace", default="default", help="of the objects; default: %(default)s")
        parser.add_argument("--pods", default="", metavar="FILE", help="images, capacity and template of the node")

    def handle(self, *args: object, **options: Any) -> None:
        from fleet.kubernetes import pod_settings, render

        spec = _spec(options["file"])
        try:
            where = pod_settings.read(_text(options["pods"]) if options["pods"] else "", options["namespace"])
            found = list(render.objects(spec, where))
        except (ValueError, LookupError) as error:
            raise CommandError(f"{options['pods'] or options['file']}: {error}") from None
        self.stdout.write(render.as_yaml(found), ending="")


def _spec(name: str) -> FleetSpec:
    try:
        return parse_fleet(document.load(_text(name)))
    except UnreadableDocument as error:
        raise CommandError(f"{name}: {error}") from None
    except InvalidFleet as error:
        raise CommandError("\n".join(f"{name}: {problem}" for problem in error.problems)) from None


def _text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
