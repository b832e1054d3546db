"""The lease by which one of several workers leads; writes of the others are refused. A holder renews the row once a
second. Another worker takes the lease if it was given back, if its holder's process is known to have ended, or if the
row has not changed for SILENT_S by the other worker's own monotonic clock; clocks of different hosts are never
compared. Each holder has a token. In a step, each write checks it in its own transaction (`fenced`), so that a holder
that slept through the takeover writes nothing.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.base.schedule.models import Lease
from fleet.jobs import process_identity
from fleet.tries import StepOver

NONE = 0  # token while there is no holder
BEAT_S = 1.0  # interval between renewals, and between checks by a waiting worker
HELD_S = 5.0  # a holder takes no step after this long without a renewal
SILENT_S = 6.0  # another worker takes the row after this long without a change
CONTROL = "control"

_WRITES = ("INSERT", "UPDATE", "DELETE")
log = logging.getLogger(__name__)


class LeaseLost(StepOver, DatabaseError):
    """Another worker leads, or may lead by now."""


class Leadership:
    """One worker's side of a lease."""

    def __init__(self, worker: str, name: str = CONTROL, clock: Callable[[], float] = time.monotonic) -> None:
        self.worker = worker
        self.name = name
        self.token = NONE
        self._clock = clock
        self._renewed_at = float("-inf")
        self._seen = (-1, -1)  # token and beat last seen in the row
        self._seen_at = 0.0

    def holds(self) -> bool:
        return self.token != NONE and self._clock() - self._renewed_at < HELD_S

    def step(self) -> None:
        """Renew the lease, or take it if it is free."""
        began = self._clock()
        if self.token != NONE:
            if self._mine().update(beat=F("beat") + 1):
                self._renewed_at = began
                return
            log.warning("%s no longer leads: another worker has taken over", self.worker)
            self.token = NONE
        row, _ = Lease.objects.get_or_create(name=self.name)
        if self._is_free(row, began):
            self._take(row, began)

    def release(self) -> None:
        """Give the lease back, so that another worker takes over at once."""
        if self.token != NONE:
            self._mine().update(holder="", process="")
            self.token = NONE

    def _mine(self) -> Any:
        return Lease.objects.filter(name=self.name, token=self.token)

    def _is_free(self, row: Lease, began: float) -> bool:
        """Return whether the lease is free. `began` is the time before the row was read. The silence counts from after
        the first check until before this one, because each check may have taken seconds."""
        if (row.token, row.beat) != self._seen:
            self._seen, self._seen_at = (row.token, row.beat), self._clock()
        silent = began - self._seen_at >= SILENT_S
        return silent or not row.holder or process_identity.is_gone(row.process)

    def _take(self, row: Lease, began: float) -> None:
        unchanged = Lease.objects.filter(name=row.name, token=row.token, beat=row.beat, holder=row.holder)
        if unchanged.update(
            token=row.token + 1,
            beat=0,
            holder=self.worker,
            process=process_identity.own(),
            taken_at=timezone.now(),
        ):
            self.token, self._renewed_at = row.token + 1, began
            log.warning("%s leads now, after %s", self.worker, row.holder or "nobody")

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """Make the block's reads and writes of the database fail with LeaseLost once another worker has the lease."""
        token, features = self.token, connection.features
        returning = features.can_return_columns_from_insert
        if connection.vendor == "sqlite":
            # A row returned by an INSERT would have to be read before the enclosing transaction can end.
            features.can_return_columns_from_insert = False

        def fence(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
            verb = sql.lstrip()[:6].upper()
            if verb == "SELECT" or verb in _WRITES:
                self._check(token)
            if verb not in _WRITES:
                return execute(sql, params, many, context)
            with contextlib.nullcontext() if connection.in_atomic_block else transaction.atomic():
                self._confirm(token)
                return execute(sql, params, many, context)

        try:
            with connection.execute_wrapper(fence):
                yield
        finally:
            features.can_return_columns_from_insert = returning

    def _check(self, token: int) -> None:
        """Check by this process's own clock, so that a process that was suspended notices that time has passed."""
        if token != self.token or not self.holds():
            raise LeaseLost(f"{self.worker} no longer leads")

    def _confirm(self, token: int) -> None:
        """Confirm the token in the transaction that writes. SQLite allows only one writing transaction at a time;
        PostgreSQL makes a takeover wait until this one has ended."""
        locked = " FOR KEY SHARE" if connection.vendor == "postgresql" else ""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT 1 FROM {Lease._meta.db_table} WHERE name = %s AND token = %s{locked}",  # noqa: S608
                (self.name, token),
            )
            if cursor.fetchone() is None:
                self._renewed_at = float("-inf")
                raise LeaseLost(f"another worker has taken over from {self.worker}")


def limit_idle_transactions(connection: Any, **_: Any) -> None:
    """Limit idle transactions: a worker that is suspended inside one would hold its locks, and the lease, forever."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{HELD_S - BEAT_S:g}s'")


def lead() -> Lease | None:
    """Return the control plane's lease from the database."""
    return Lease.objects.filter(name=CONTROL).first()
