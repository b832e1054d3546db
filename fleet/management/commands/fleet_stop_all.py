from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from fleet.shutdown import stop_all


class Command(BaseCommand):
    help = "End every engine of a node. What should run stays as it is: a reconciler that runs starts them again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--node", default="local")
        parser.add_argument("--grace", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL")

    def handle(self, *args: object, **options: Any) -> None:
        stopped = stop_all(options["node"], options["grace"])
        self.stdout.write(f"{len(stopped)} stopped{': ' + ', '.join(stopped) if stopped else ''}")
