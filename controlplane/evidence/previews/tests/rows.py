"""Previews as rows in every state, of the current draft and live version."""

from typing import Any

from django.utils import timezone

from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.tests.ready_made import preview
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.models import Draft
from fleet.jobs import DONE, ENDED
from router.policy.schema import document as documents


def preview_of(draft: Draft, status: str = DONE, **changes: Any) -> Preview:
    live, facts, now = policies.live_version(draft.policy), preview(status), timezone.now()
    trace = dict(facts["trace"], last_at=now.timestamp() - 200, first_at=now.timestamp() - 4000)
    values = {
        "policy": draft.policy,
        "live_version": live.number,
        "live_sha256": live.sha256,
        "draft_revision": draft.revision,
        "draft_sha256": documents.sha256(draft.document),
        "draft_document": draft.document,
        "pool": "demo",
        "trace_name": trace.pop("name"),
        "trace": trace,
        "max_requests": 2000,
        "seeds": [1],
        "key": "k",
        "status": status,
        "done": facts["done"],
        "total": facts["total"],
        "actor": "otto",
        "asked_at": now,
        "started_at": now,
        "ended_at": now if status in ENDED else None,
        "twin": facts["twin"],
        "result": facts["result"],
    }
    return Preview.objects.create(**values | changes)
