from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fleet.control.shutdown import stop_all


class Command(BaseCommand):
    help = "End every engine of a node. The desired state stays, so a running reconciler starts them again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--node", default="local")
        parser.add_argument("--grace", type=float, default=5.0, help="seconds before a kill")

    def handle(self, *args: object, **options: Any) -> None:
        try:
            ended = stop_all(options["node"], options["grace"])
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{len(ended.names)} stopped{': ' + ', '.join(ended.names) if ended.names else ''}")
        if ended.left:
            raise CommandError("\n".join(f"{name} was not ended: {why}" for name, why in ended.left.items()))
