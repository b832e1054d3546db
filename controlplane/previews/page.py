"""What the draft's pages show of a preview: the panel, one line of it, and the choices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from controlplane.dashboard.templatetags.figures import seconds
from controlplane.permissions import operator_controls
from controlplane.policies import selectors as policies
from controlplane.policies.errors import PolicyError
from controlplane.policies.models import Draft, Policy
from controlplane.policies.publication.scope import scope_of
from controlplane.previews import presenting, selectors
from controlplane.previews.analysis.trust import LEAST_REQUESTS
from controlplane.previews.models import Preview
from controlplane.previews.source import BUILT_IN
from controlplane.traces import library
from router.policy.schema import document as documents

AS_USUAL = f"recorded traffic of the pool; {BUILT_IN} below {LEAST_REQUESTS} requests"  # when none is chosen


@dataclass(frozen=True, slots=True)
class PreviewPanel:
    """What a preview had said of a version, in a few words."""

    preview: int
    words: str


def panel(
    request: HttpRequest, policy: Policy, draft: Draft | None, preview: Preview | None, *, fixed: bool = False
) -> dict[str, Any]:
    """The state of one preview, or of none. `draft` is the open one; `fixed` stays with this preview whatever comes."""
    found = selectors.as_dict(preview) if preview else None
    return {
        "policy": policy,
        "draft": draft,
        "preview": found,
        "shown": presenting.shown(found, standing(policy, draft, found)) if found else None,
        "fixed": fixed,
        "refresh": _refresh(policy, preview if fixed else None),
        **operator_controls(request.user),
    }


def standing(policy: Policy, draft: Draft | None, found: Mapping[str, Any]) -> presenting.PreviewStatus:
    return presenting.standing(
        found,
        live=policies.live_version(policy).number,
        draft_revision=draft.revision if draft else None,
        draft_sha256=documents.sha256(draft.document) if draft else None,
    )


def _refresh(policy: Policy, preview: Preview | None) -> str:
    if preview is None:
        return reverse("draft-preview-state", kwargs={"name": policy.name})
    return reverse("preview-state", kwargs={"name": policy.name, "number": preview.pk})


def choices(policy: Policy, last: Mapping[str, Any] | None, typed: Mapping[str, str]) -> dict[str, Any]:
    """Pools and traces to choose from; chosen is what was typed, else what the last preview had."""
    pools = scope_of(policy).pools
    pool = typed.get("pool") or (last["pool"] if last else "")
    pool = pool if pool in pools else next(iter(pools), "")
    seeds = typed.get("seeds") or (", ".join(map(str, last["seeds"])) if last else "1")
    trace = typed.get("trace", "")
    return {
        "pools": pools,
        "pool": pool,
        "traces": [("", AS_USUAL), *((entry.name, _label(entry)) for entry in library.entries())],
        "trace": trace,
        "seeds": seeds,
        "summary": ", ".join(
            [pool or "no pool", trace or "recorded traffic", f"seed{'s' if ',' in seeds else ''} {seeds}"]
        ),
    }


def _label(entry: library.Entry) -> str:
    """A trace with its size and age, as far as they are known without reading it."""
    if entry.recorded:
        return f"{entry.name}: {entry.recorded.requests:,} requests, newest {seconds(entry.recorded.newest_age_s)} old"
    known = entry.summary or {}
    size = f", {known['requests']:,} requests" if "requests" in known else ""
    return f"{entry.name}: {entry.source}{size}"


def foreseen(policy: Policy) -> dict[int, PreviewPanel]:
    """Of every version that was previewed, by its number."""
    versions = policies.history(policy).defer("document")
    return {
        number: PreviewPanel(
            preview.pk, f"{presenting.share(preview.result['changed']['share'])} of decisions elsewhere"
        )
        for number, preview in selectors.previews_of_versions(policy, versions).items()
    }


def problems_of(error: PolicyError) -> list[tuple[str, str]]:
    """(field or nothing, message) of each thing that stands in the way of a preview."""
    faults = getattr(error, "errors", ())
    return [(fault.path, fault.text) for fault in faults] or [("", str(error))]
