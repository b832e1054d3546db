"""`manage.py deliver NAME`: propose a policy document as a delivery, start it and wait for its end."""

import json
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import yaml
from django.core.exceptions import PermissionDenied
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, close_old_connections

from controlplane.people.audit.services import Actor, on_host
from controlplane.traffic.deliveries import selectors, services, states, stop
from controlplane.traffic.deliveries.foresight import foresee
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.repeatable import deliver_document
from controlplane.traffic.deliveries.states import MEANING, REFUSED, TIME, State
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import NothingToPublish, PolicyError
from controlplane.traffic.policies.models import Policy
from fleet.counted import percent
from router.contract.values.problem import InvalidInput

EVERY_S = 1.0
DAY = 86_400


class Command(BaseCommand):
    help = (
        "Propose a policy document as the candidate of a delivery, and start it when it needs no approval. Exit "
        "status with --wait: " + ", ".join(f"{code} {text}" for code, text in MEANING.items()) + "."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", help="name of the policy")
        parser.add_argument(
            "--file", help="the policy document (JSON), - for standard input; left out: the open delivery"
        )
        parser.add_argument("--plan", help="the plan (JSON or YAML); left out: shadow, canaries of 5 and 25 %%, full")
        parser.add_argument("--reason", default="", help="why")
        parser.add_argument("--again", default="", help="why a document that failed before is tried again")
        parser.add_argument("--emergency", default="", metavar="WHY", help="bypass the rules; everybody is notified")
        parser.add_argument("--wait", action="store_true", help="until it ends, or needs a person")
        parser.add_argument("--timeout", type=float, default=DAY, metavar="S", help="longest wait, default a day")
        parser.add_argument("--stop", metavar="POOL", help="every router back on the live version, with Redis alone")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["stop"]:
            sys.exit(stop.run(options["stop"], options["reason"]))
        if not options["name"]:
            raise CommandError("name a policy, or --stop POOL", returncode=REFUSED)
        try:
            words = ("name", "file", "plan", "reason", "again", "emergency")
            delivery = self._delivery(*(options[key] for key in words))
        except (PolicyError, InvalidInput, PermissionDenied) as error:
            raise CommandError(_said(error), returncode=REFUSED) from None
        if delivery is not None and (options["wait"] or not delivery.is_open):
            code = self._wait(delivery, options["timeout"])
            self.stdout.write(f"{delivery.subject}: {MEANING[code]}")
            sys.exit(code)

    def _delivery(
        self, name: str, file: str | None, plan: str | None, reason: str, again: str, emergency: str
    ) -> Delivery | None:
        """Return the delivery, or None if the document is live already."""
        policy, actor = policies.policy(name), on_host()
        if file is None:
            delivery = selectors.open_delivery(policy)
            if delivery is None:
                raise CommandError(f"policy {policy.name} has no open delivery; name a --file", returncode=REFUSED)
            if emergency:
                delivery = services.go_without(delivery, actor, emergency)
        else:
            try:
                delivery = _proposed(policy, actor, file, plan, reason, again, emergency)
            except NothingToPublish:
                self.stdout.write(
                    f"{policies.live_version(policy).label} of {policy.name} holds this document: delivered"
                )
                return None
            self.stdout.write(f"{delivery.subject}: delivery {delivery.pk} is {delivery.state}")
            for text in foresee.of_delivery(delivery).said:
                self.stdout.write(f"  {text}")
        if delivery.state == State.READY and delivery.starts_at is None:
            delivery = services.start(delivery, actor, reason)
            self.stdout.write(_line(delivery))
        return delivery

    def _wait(self, delivery: Delivery, timeout_s: float) -> int:
        end, shown = time.monotonic() + timeout_s, _line(delivery)
        while (code := states.status(delivery.state, delivery.what)) is None:
            if time.monotonic() >= end:
                return TIME
            time.sleep(min(EVERY_S, max(end - time.monotonic(), 0.0)))
            delivery = self._again(delivery)
            if _line(delivery) != shown:
                shown = _line(delivery)
                self.stdout.write(shown)
                self.stdout.flush()
        return code

    def _again(self, delivery: Delivery) -> Delivery:
        """Return the delivery as it is now, or its last known state while the database is unreachable: the delivery
        continues by itself.
        """
        try:
            close_old_connections()
            return selectors.delivery(delivery.pk)
        except OperationalError as error:
            self.stderr.write(f"the database does not answer: {error}")
            return delivery


def _proposed(
    policy: Policy, actor: Actor, file: str, plan_file: str | None, reason: str, again: str, emergency: str
) -> Delivery:
    """Return the delivery of the document, even one that an earlier call proposed."""
    plan = _read(plan_file, yaml.safe_load) if plan_file else None
    document = _read(file, json.loads)
    return deliver_document(policy, document, plan, actor, reason, again=again, emergency=emergency).delivery


def _read(name: str, parse: Any) -> Any:
    try:
        return parse(sys.stdin.read() if name == "-" else Path(name).read_text())
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}", returncode=REFUSED) from None
    except (ValueError, yaml.YAMLError) as error:
        raise CommandError(f"{name} cannot be read: {error}", returncode=REFUSED) from None


def _said(error: Exception) -> str:
    problems = error.problems if isinstance(error, InvalidInput) else ()
    return "\n".join((str(error), *(f"  {problem}" for problem in problems)))


def _line(delivery: Delivery) -> str:
    steps = f"step {delivery.step + 1} of {len(delivery.plan['steps'])}"
    share = f", {percent(delivery.share, 'g')}" if delivery.share else ""
    return f"{delivery.subject}: {delivery.state}, {steps}{share}{delivery.why and f': {delivery.why}'}"
