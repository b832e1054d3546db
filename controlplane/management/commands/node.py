import os
import re
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Command(BaseCommand):
    help = "Be a node of the fleet: the worker that starts, watches and ends the engines of this host."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="as the fleet document names it")
        parser.add_argument("--address", default="", help="under which routers reach its engines")
        parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")

    def handle(self, *args: object, **options: Any) -> None:
        name = options["name"]
        if not _NAME.fullmatch(name):
            raise CommandError(f"--name {name}: must be lower-case letters, digits and dashes, 1 to 63 of them")
        os.environ |= self._environment(options)
        # This process becomes the worker, so that whoever supervises it stops it by its own pid.
        os.execv(sys.executable, command(name))  # noqa: S606 - our own interpreter, no shell

    def _environment(self, options: dict[str, Any]) -> dict[str, str]:
        address = options["address"] or settings.NODE_ADDRESS
        if not options["address"] and address == "127.0.0.1":
            self.stderr.write("The address is 127.0.0.1: only routers on this host reach its engines (--address)")
        labels = [*(f"{key}={value}" for key, value in settings.NODE_LABELS), *options["label"]]
        for label in labels:
            if not label.partition("=")[0] or not label.partition("=")[2]:
                raise CommandError(f"--label {label}: must be KEY=VALUE")
        return {"WEIR_NODE_ADDRESS": address, "WEIR_NODE_LABELS": ",".join(labels)}


def command(name: str) -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-A", "controlplane.celery", "--skip-checks", "worker"),
        *("-Q", f"node.{name}", "-n", f"{name}@node", "--node", name, "--pool=threads", "--concurrency=4"),
        *("--without-gossip", "--without-mingle", "--loglevel=WARNING"),
    ]
