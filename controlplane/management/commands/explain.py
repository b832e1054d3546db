"""`manage.py explain REQUEST`: a recorded decision next to the same decision recomputed, under any policy."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.pages.receipts.reader import find
from controlplane.pages.receipts.replay import (
    LabelledPolicy,
    ReplayComparison,
    ReplayRow,
    asked_rules,
    compare,
    published,
)
from controlplane.traffic.policies.errors import NoSuchPolicy
from fleet.models import Pool
from fleet.redis import connect
from router.contract.redis.receipt import Receipt
from router.contract.redis.redis_keys import RECEIPT_TTL_S
from router.contract.values.problem import InvalidInput
from router.policy.replay import NotReplayable
from router.policy.types import Candidate

DRIFT = 3


class Command(BaseCommand):
    help = (
        "Print what was decided for a request and what is decided from the same inputs now, by the version that "
        "decided then or by the policy named. Exit status 1: there is no such receipt, or it cannot be replayed; 3: "
        "the version that decided then decides otherwise now."
    )

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        """Let --version name the policy's version, although every command has one that prints Django's."""
        return super().create_parser(prog_name, subcommand, conflict_handler="resolve", **options)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("request_id", help="x-request-id of the answer")
        other = parser.add_mutually_exclusive_group()
        other.add_argument("--pool", help="by the live policy of this pool")
        other.add_argument("--policy", help="by this policy: its live version, or the one that --version names")
        other.add_argument("--file", help="by the policy document (JSON) in this file, - for standard input")
        parser.add_argument("--version", type=int, metavar="N", help="by this version of the policy")

    def handle(self, *args: Any, **options: Any) -> None:
        receipt = _receipt(options["request_id"])
        try:
            comparison = compare(
                receipt, _rules(receipt, *(options[name] for name in ("file", "pool", "policy", "version")))
            )
        except (NoSuchPolicy, NotReplayable, InvalidInput) as error:
            raise CommandError(f"{options['request_id']}: {error}") from None
        self._print(comparison)
        if comparison.drift:
            self.stderr.write(f"{comparison.rules.label} decided this request and now decides it differently")
            sys.exit(DRIFT)

    def _print(self, comparison: ReplayComparison) -> None:
        by = f"now, by {comparison.rules.label}"
        rows = [("", "recorded", by), *((title, then, now) for title, then, now, _ in comparison.facts())]
        self._table([(*row, "" if row[1] == row[2] or not row[0] else "differs") for row in rows])
        for title, reasons in (("recorded", comparison.recorded.reasons), (by, comparison.recomputed.reasons)):
            self.stdout.write("\n".join((f"\nreasons, {title}", *(f"  {reason}" for reason in reasons))))
        self.stdout.write("\n")
        head = ("candidate", "h", "n", "score recorded", "score now", "recorded", "now")
        self._table([head, *(_candidate(row) for row in comparison.rows())])
        changed = ", ".join(name.replace("_", " ") for name in comparison.changed)
        self.stdout.write(f"\ndiffers: {changed}" if changed else "\nthe same decision")

    def _table(self, rows: list[tuple[str, ...]]) -> None:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _receipt(request_id: str) -> Receipt:
    try:
        found = find(connect(), request_id)
    except redis.RedisError as error:
        raise CommandError(f"Redis does not answer: receipts cannot be read ({error})") from None
    if found is None:
        kept = f"receipts are kept for {RECEIPT_TTL_S // 60} minutes at most"
        raise CommandError(f"there is no receipt of {request_id!r}; {kept}")
    return found


def _rules(
    receipt: Receipt, file: str | None, pool: str | None, policy: str | None, version: int | None
) -> LabelledPolicy:
    if file:
        return LabelledPolicy("", 0, _document(file), "standard input" if file == "-" else file, is_file=True)
    if pool:
        found = Pool.objects.filter(name=pool).first()
        if found is None:
            raise NoSuchPolicy(f"there is no pool {pool}")
        return published(found.policy, version)
    return asked_rules(receipt, policy or "", version)


def _document(name: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(f"{name} is not JSON: {error}") from None


def _candidate(row: ReplayRow) -> tuple[str, ...]:
    then, now = row.recorded, row.recomputed
    return (
        row.id,
        f"{then.cached_tokens:,}",
        f"{then.new_tokens:,}",
        _score(then),
        _score(now),
        row.outcome_then,
        row.outcome_now,
    )


def _score(candidate: Candidate) -> str:
    return "–" if candidate.score is None else f"{candidate.score:,.3f}".rstrip("0").rstrip(".")
