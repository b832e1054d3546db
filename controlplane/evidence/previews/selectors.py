"""Reads previews: those of a draft, those of published versions, and one as JSON."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from django.utils import timezone

from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.analysis.types import DraftEffect, PreviewView
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.policy_job import left_s, of_policy, shown, trace_of
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from fleet.jobs import DONE
from router.policy.schema import document as documents

LATER_FIELDS = ("new_tokens_per_s", "saved_tokens_per_s", "requests_per_s", "saving", "canary")


def latest_of(draft: Draft) -> Preview | None:
    """Return the latest preview of the draft's current document, or else of any draft of the policy."""
    asked = of_policy(Preview, draft.policy).order_by("-asked_at", "-pk")
    return asked.filter(draft_sha256=documents.sha256(draft.upgraded)).first() or asked.first()


def previews_of_versions(policy: Policy, versions: Iterable[PolicyVersion]) -> dict[int, Preview]:
    """Return previews by the number of their version."""
    asked = {(version.sha256, version.number - 1): version for version in versions}
    newest: dict[int, Preview] = {}
    for preview in of_policy(Preview, policy).filter(status=DONE, draft_sha256__in={content for content, _ in asked}):
        version = asked.get((preview.draft_sha256, preview.live_version))
        if version is not None and preview.created_at <= version.published_at:
            newest.setdefault(version.number, preview)
    return newest


def preview_behind(version: PolicyVersion, before: PolicyVersion) -> Preview | None:
    """Return the latest preview of this change that was created before the version."""
    same = {"draft_sha256": version.sha256, "live_sha256": before.sha256}
    return of_policy(Preview, version.policy).filter(status=DONE, created_at__lte=version.published_at, **same).first()


def as_dict(preview: Preview, now: datetime | None = None) -> PreviewView:
    """Return the preview in the API's format. The age of the traffic is at `now`."""
    now = now or timezone.now()
    trace = trace_of(preview, now)
    values: dict[str, Any] = {
        **shown(preview, "draft_revision", "draft_sha256", "seeds"),
        "left_s": left_s(preview, now),
        "cached": preview.was_cached,
        "trace": trace,
        "twin": {"basis": "", "about": "", "expected": None, "deviation": None, **preview.twin},
        "trust": [*trust.of_age(trace["name"], trace["age_s"]), *preview.trust],
        "first_result": _upgraded(preview.first_result),
        "result": _upgraded(preview.result),
    }
    return cast(PreviewView, values)


def _upgraded(result: DraftEffect | None) -> DraftEffect | None:
    """Return the result, with null for fields that earlier versions of Weir did not store."""
    if not result:
        return None
    whole = dict.fromkeys(LATER_FIELDS) | dict(result)
    if saving := result.get("saving"):
        whole["saving"] = {"low": None, "high": None, **saving}
    return cast(DraftEffect, whole)
