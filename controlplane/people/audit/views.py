"""The audit page."""

import json
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.people.audit.differences import differences
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.selectors import AuditFilters, known, page

BIGGEST_ID = 2**63 - 1


@require_GET
def audit_log(request: HttpRequest) -> HttpResponse:
    asked = {name: request.GET.get(name, "").strip()[:200] for name in ("actor", "action", "subject")}
    rows, older = page(AuditFilters(**asked, before=_cursor(request.GET.get("before", ""))))
    kept = urlencode({name: value for name, value in asked.items() if value})
    context = {
        "entries": [{"entry": row, "changes": changes(row)} for row in rows],
        "asked": asked,
        "filtered": any(asked.values()),
        "older": f"?{kept}&before={older}" if older else "",
        "actors": known("actor_name"),
        "actions": known("action"),
    }
    return render(request, "audit/log.html", context)


def _cursor(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) > BIGGEST_ID:
        raise Http404("That page of the audit log does not exist")
    return int(text)


def changes(entry: AuditEntry) -> list[dict[str, str]]:
    """Fields that differ between `before` and `after`."""
    if entry.before is None:
        return []
    found = differences(_by_name(entry.before), _by_name(entry.after or {}))
    return [{"path": path, "old": _text(old), "new": _text(new)} for path, (old, new) in found.items()]


def _by_name(value: Any) -> Any:
    """With each list of named objects as an object: a pool that is added is a change of its own, not of the list."""
    if isinstance(value, dict):
        return {key: _by_name(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        return {str(one["name"]): {key: _by_name(one[key]) for key in one if key != "name"} for one in value}
    return value


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
