import sys
from typing import Any

from django.core.management.base import BaseCommand

from fleet import selectors
from fleet.models import Instance, Pool


class Command(BaseCommand):
    help = "Show each pool and instance. Exit status 0: every desired instance is ready; 1: some are not."

    def handle(self, *args: object, **options: Any) -> None:
        healthy = True
        for pool in selectors.pools(include_ephemeral=True):
            ready, desired = selectors.pool_ready(pool.name)
            healthy &= ready == desired
            self.stdout.write(_pool_line(pool, ready, desired))
            for row in selectors.instances(pool):
                self.stdout.write(_instance_line(row))
        if not healthy:
            sys.exit(1)


def _pool_line(pool: Pool, ready: int, desired: int) -> str:
    owner = f", of {pool.ephemeral_owner}" if pool.ephemeral_owner else ""
    where = f"{pool.kind} on {pool.node or 'the nodes of its placement'}"
    return f"{pool.name}: {ready}/{desired} ready, {pool.model}, {where}, policy {pool.policy}{owner}"


def _instance_line(row: Instance) -> str:
    return f"  {row.name:<20} {row.state:<12} epoch {row.epoch:<4} pid {row.pid or '-':<8} {row.url:<26} {row.reason}"
