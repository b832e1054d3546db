from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.pages.fleet_ops import actions
from controlplane.people.audit.services import on_host
from fleet import selectors
from fleet.calibration import services as calibrations
from fleet.calibration.describe import FittedLoad, describe_constants, describe_held_out, describe_load, fitted_loads
from fleet.counted import percent
from fleet.models import Calibration, Instance
from fleet.services import NotPossible


class Command(BaseCommand):
    help = (
        "Measure a running engine with a short sweep of requests, or take recorded ones, and fit the constants of the "
        "twin. "
        "Exit status 0: done; 1: refused, or the measurement failed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("instance", help="for example chat-0")
        parser.add_argument(
            "--seconds",
            type=float,
            default=calibrations.SECONDS,
            help="limit of the measurement (default: %(default)g)",
        )
        parser.add_argument("--anyway", action="store_true", help="even if other requests run on the instance")
        parser.add_argument(
            "--from-traffic", action="store_true", help="fit to requests that routers recorded; none is sent"
        )
        parser.add_argument("--reason", default="", help="kept in the audit log")

    def handle(self, *args: object, **options: Any) -> None:
        source = calibrations.TRAFFIC if options["from_traffic"] else calibrations.SWEEP
        asked = {"anyway": options["anyway"], "source": source}
        row = self._ask(options["instance"], options["reason"], options["seconds"], **asked)
        self.stdout.write(_MEASURED[source].format(row))
        done = calibrations.perform(row.pk, lambda text: self.stdout.write(f"  {text}"))
        row.refresh_from_db()
        if not done:
            raise CommandError(f"{row.instance}: {row.cause}")
        self._show(row)

    def _ask(self, name: str, reason: str, seconds: float, *, anyway: bool, source: str) -> Calibration:
        actor = on_host()
        try:
            return actions.calibrate(name, actor, reason, seconds, anyway=anyway, source=source)
        except Instance.DoesNotExist:
            known = ", ".join(selectors.instances().values_list("name", flat=True)) or "none yet"
            raise CommandError(f"no instance is named {name}; there are: {known}") from None
        except NotPossible as error:
            raise CommandError(str(error)) from None

    def _show(self, row: Calibration) -> None:
        if row.points:
            self.stdout.write(_HEAD)
        for load in fitted_loads(row.points, row.constants, row.limits["max_num_batched_tokens"]):
            self.stdout.write(_line(load))
        for name, value in describe_constants(row.constants):
            self.stdout.write(f"{name}: {value}")
        self.stdout.write(
            f"error {percent(row.ttft_error, '.1f')} TTFT, {percent(row.tpot_error, '.1f')} TPOT, n = {row.n}"
        )
        for name, off in (*describe_held_out(row.held_out), *describe_load(row.load_range)):
            self.stdout.write(f"{name}: {off}")
        for note in row.notes:
            self.stdout.write(f"note: {note}")


_MEASURED = {
    calibrations.SWEEP: "{0.instance} is measured with test requests for up to {0.seconds:g} s: other requests take "
    "longer during that time, and its prefix cache is filled with test prompts",
    calibrations.TRAFFIC: "{0.instance} is calibrated with the requests that routers recorded",
}
_HEAD = f"{'requests':>8} {'prompt':>7} {'n':>3} {'TTFT ms':>9} {'fitted':>9} {'TPOT ms':>9} {'fitted':>9}"


def _line(load: FittedLoad) -> str:
    values = (load.ttft_ms, load.ttft_fitted_ms, load.tpot_ms, load.tpot_fitted_ms)
    columns = " ".join(f"{'–' if value is None else f'{value:.2f}':>9}" for value in values)
    return f"{load.concurrency:>8} {load.prompt_tokens:>7} {load.n:>3} {columns}"
