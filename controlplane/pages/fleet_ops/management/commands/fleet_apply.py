import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand

from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.checks import StartPreview, start_of
from controlplane.people.audit.services import on_host
from controlplane.traffic.policies.errors import RulesForbid
from fleet.services import Applied
from fleet.spec.changes import FleetChange
from fleet.spec.document import UnreadableDocument
from router.contract.values.problem import InvalidInput

OK, FAILED, USAGE, DRIFT = 0, 1, 2, 3


class Command(BaseCommand):
    help = (
        "Make a document the desired state of the fleet. "
        "Exit status 0: done, or no changes; 1: rejected; 2: usage; 3: changes, with --dry-run."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="YAML or JSON; - reads standard input")
        parser.add_argument("--dry-run", action="store_true", help="only show the changes")
        parser.add_argument("--prune", action="store_true", help="remove pools that the document does not name")
        parser.add_argument("--reason", default="", help="kept in the audit log")
        parser.add_argument(
            "--emergency", default="", metavar="WHY", help="bypass the rules of policies; everybody is notified"
        )

    def handle(self, *args: object, **options: Any) -> None:
        text = self._read(options["file"])
        given = {name: options[name] for name in ("reason", "dry_run", "prune", "emergency")}
        try:
            applied = actions.apply(text, on_host(), **given)
        except UnreadableDocument as error:
            self._end(f"{options['file']}: {error}", FAILED)
        except (InvalidInput, RulesForbid) as error:
            self._end("\n".join(f"{options['file']}: {problem}" for problem in error.problems), FAILED)
        self._print(applied)
        if not applied.drift:
            self.stdout.write("the fleet matches the document")
        elif applied.dry_run:
            sys.exit(DRIFT)

    def _print(self, applied: Applied) -> None:
        for change in applied.changes:
            self.stdout.write(_change_text(change))
        for warning in applied.warnings:
            self.stderr.write(f"warning: {warning}")
        for start in _starts(applied):
            self.stdout.write(_start_text(start))

    def _read(self, name: str) -> str:
        try:
            return sys.stdin.read() if name == "-" else Path(name).read_text()
        except (OSError, UnicodeDecodeError) as error:
            self._end(f"{name}: {getattr(error, 'strerror', None) or error}", USAGE)

    def _end(self, message: str, status: int) -> NoReturn:
        self.stderr.write(message)
        sys.exit(status)


def _starts(applied: Applied) -> list[StartPreview]:
    """Return the starts of instances in changed pools, for a dry run."""
    changed = [change.pool for change in applied.changes if change.kind in {"create", "update"}]
    return [start_of(pool) for pool in applied.spec.pools if pool.name in changed] if applied.dry_run else []


def _start_text(start: StartPreview) -> str:
    if start.pod is not None:
        pod = start.pod.lacks or f"a Pod of {start.pod.image} on {start.pod.node}: {start.command}"
        return f"{start.pool} starts: {pod}"
    files = "".join(f"\n  {path}:\n    " + text.strip().replace("\n", "\n    ") for path, text in start.files.items())
    return f"{start.pool} starts: {start.command or 'nothing; Weir does not start it'}{files}"


def _change_text(change: FleetChange) -> str:
    fields = "".join(f"\n    {field.path}: {field.old!r} -> {field.new!r}" for field in change.fields)
    return f"{change.kind} {change.pool}: {change.effect}{fields}"
