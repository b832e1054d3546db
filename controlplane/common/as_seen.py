"""Conditional changes: the row is locked and compared with the ETag in If-Match or in the form. An ETag is a digest of
the columns that people change, so that Weir's own writes do not make it stale.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from django.db import transaction
from django.db.models import F, Model, QuerySet
from django.http import Http404, HttpRequest
from django.utils.crypto import salted_hmac

M = TypeVar("M", bound=Model)
R = TypeVar("R")

# Columns that people change, by model
SEEN: Mapping[str, tuple[str, ...]] = {
    "accounts.ApiToken": ("name", "scopes", "expires_at", "revoked_at"),
    "batches.Batch": ("status",),
    "deliveries.Freeze": ("name", "policies", "start", "end", "zone", "rrule", "behaviour", "reason", "removed_at"),
    "experiments.Experiment": ("status",),
    "experiments.Matrix": ("statuses",),
    "fleet.Calibration": ("status",),
    "fleet.Instance": ("desired", "sleep_level"),  # A restart may be requested any number of times.
    "fleet.Node": ("cordoned", "draining", "because"),
    "fleet.Pool": (
        "model", "policy", "kind", "replicas", "node", "engine", "update", "placement", "schedule", "autoscale", "slo",
        "access", "mode", "halted",
    ),
    "keys.ApiKey": (
        "name", "pools", "models", "requests_per_min", "tokens_per_min", "priority", "priority_max", "expires_at",
        "revoked_at",
    ),
    "keys.Budget": ("limit", "warn_at", "refuse"),
    "notices.Channel": ("name", "url", "events", "enabled", "words", "secret"),
    "planning.FleetPlan": ("status",),
    "policies.Policy": ("direct", "approvals_needed", "least_share", "least_for_s", "least_bake_s"),
    "previews.Preview": ("status",),
    "shares.Share": ("name", "pool", "expires_at", "revoked_at"),
    "tuning.Tuning": ("status", "drafted"),
}  # fmt: skip


UNSEEN = "unseen"  # an ETag that matches no row


class ChangedMeanwhile(Exception):
    """Someone else changed the row first; `current` is the ETag to send next."""

    def __init__(self, what: str, current: str) -> None:
        super().__init__(f"{what} was changed meanwhile: look at what is there now")
        self.current = current


def etag(row: Model) -> str:
    label = row._meta.label
    return digest(label, row.pk, *(getattr(row, name) for name in SEEN[label]))


def digest(*values: object) -> str:
    """Return a digest made with the secret key, because some of the values are secrets and viewers receive ETags,
    too."""
    return salted_hmac("etag", json.dumps(values, default=str, sort_keys=True)).hexdigest()[:32]


def check(what: str, current: str, if_match: str | None) -> None:
    """Raise ChangedMeanwhile unless `current` is what the caller saw; None skips the check."""
    if if_match is not None and if_match != current:
        raise ChangedMeanwhile(what, current)


def posted(request: HttpRequest) -> str | None:
    """Return the ETag from which a form was made (`{% seen row %}`); None if the form has none."""
    return request.POST.get("etag")


def posted_of(request: HttpRequest, row: Model) -> str | None:
    """Return the ETag of `row` in a form made from several rows; an ETag that matches no row if the form showed an
    outdated row."""
    given, current = request.POST.getlist("etag"), etag(row)
    return current if current in given or not given else UNSEEN


def found(row: R | None, detail: str) -> R:
    """Return the row. Raise Http404 if there is none."""
    if row is None:
        raise Http404(detail)
    return row


@contextmanager
def held(rows: QuerySet[M], what: str, if_match: str | None = None) -> Iterator[M]:
    """Yield the only row of `rows`, in a transaction in which no one else changes it. Raise Http404 if it no longer
    exists."""
    key = rows.model._meta.pk.name
    with transaction.atomic():
        if not rows.update(**{key: F(key)}):
            raise Http404(f"there is no {what}")
        row = rows.get()
        check(f"the {what}", etag(row), if_match)
        yield row
