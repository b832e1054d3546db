"""`manage.py doctor`: the effective settings, and what this machine lacks, with advice."""

import re
import sys
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.doors import doctor
from router.contract.installation import FILES, VERSION

ESSENTIAL = {"data folder", "database", "Redis"}


class Command(BaseCommand):
    help = "Print version and settings (secrets masked) and check the machine; exit status 1 when Weir cannot run."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Weir {VERSION}")
        documented = re.findall(r"^\| `([A-Z_]+)`", (FILES / "docs/settings.md").read_text(), re.MULTILINE)
        for name, value in doctor.environment(tuple(documented)).items():
            self.stdout.write(f"{name}={value}")
        findings = [*(check() for check in doctor.CHECKS), *doctor.kubernetes(), *doctor.engines()]
        for finding in findings:
            self.stdout.write(line(finding))
        if any(not finding.good for finding in findings if finding.subject in ESSENTIAL):
            sys.exit(1)


def line(finding: doctor.DoctorFinding) -> str:
    advice = "" if finding.good else f" → {finding.advice}"
    return f"{'ok' if finding.good else '!!'}  {finding.subject:<12} {finding.text}{advice}"
