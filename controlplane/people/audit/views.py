"""The audit page, and its entries as CSV."""

import json
import re
from typing import Any
from urllib.parse import quote, urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.common.attachment import attachment
from controlplane.common.csv_cell import csv_text
from controlplane.people.audit.differences import differences
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.selectors import AuditFilters, day_of, exported, known, page
from router.policy.schema.parameters import PARAMETERS

BIGGEST_ID = 2**63 - 1


COLUMNS = ("at", "actor_kind", "actor_name", "action", "subject", "reason", "request_id")
LABELS = {"since": "From", "until": "To"}
ASKED = ("actor", "action", "subject", "since", "until")


# Finds the page of an audit entry's object by the entry's action and subject
LISTS = {
    "budget": "/use/",
    "channel": "/channels/",
    "experiment": "/experiments/",
    "fleet": "/fleet/",
    "freeze": "/freezes/",
    "key": "/keys/",
    "models": "/models/",
    "batch": "/batches/",
    "profile": "/fleet/profiles/",
    "share": "/shares/",
    "token": "/tokens/",
    "trace": "/experiments/traces/",
    "user": "/users/",
}
# Subjects whose name or number is part of their page's address
OWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"policy (?P<of>[\w-]+) v(?P<number>\d+)"), "/policies/{of}/versions/{number}/"),
    (re.compile(r"policy (?P<of>[\w-]+)"), "/policies/{of}/"),
    (re.compile(r"experiment (?P<of>\d+)"), "/experiments/{of}/"),
    (re.compile(r"plan (?P<of>\d+)"), "/plans/{of}/"),
    (re.compile(r"preview (?P<number>\d+) of (?P<of>[\w-]+)"), "/policies/{of}/previews/{number}/"),
    (re.compile(r"tuning (?P<number>\d+) of (?P<of>[\w-]+)"), "/policies/{of}/tunings/{number}/"),
    (re.compile(r"pool (?P<of>[\w-]+)"), "/fleet/pools/{of}/"),
)
BY_ACTION = {"instance": "/fleet/instances/{of}/", "pool": "/fleet/pools/{of}/", "node": "/fleet/nodes/{of}/"}
NAME = re.compile(r"[\w.-]+")


def place(action: str, subject: str) -> str:
    """Return the address; empty if there is none."""
    kind = action.partition(".")[0]
    if kind in BY_ACTION and NAME.fullmatch(subject):
        return BY_ACTION[kind].format(of=quote(subject))
    for pattern, address in OWN:
        if found := pattern.fullmatch(subject):
            return address.format(**found.groupdict())
    return LISTS.get(kind, "")


# Effects of a delivery's triggers
VERBS = {
    "armed": "started in the routers",
    "fail": "stopped by a guard",
    "good": "continues",
    "late": "not acknowledged in time",
    "pass": "step passed",
    "trip": "stopped by a router",
}


def words(action: str) -> str:
    """Format an action: policy.open_draft → policy: open draft."""
    kind, _, verb = action.partition(".")
    verb = VERBS.get(verb, verb) if kind == "delivery" else verb
    return f"{kind}: {verb}".replace("_", " ") if verb else kind


@require_GET
def audit_log(request: HttpRequest) -> HttpResponse:
    asked = {name: request.GET.get(name, "").strip()[:200] for name in ASKED}
    days = {name: day_of(asked[name]) for name in ("since", "until")}
    filters = AuditFilters(
        asked["actor"],
        asked["action"],
        asked["subject"],
        _cursor(request.GET.get("before", "")),
        **days,
    )
    kept = urlencode({name: value for name, value in asked.items() if value})
    if request.GET.get("format") == "csv":
        return _as_csv(filters)
    rows, older = page(filters)
    context = {
        "entries": [shown_row(entry) for entry in rows],
        "asked": asked,
        "unread": [(LABELS[name], asked[name]) for name, day in days.items() if asked[name] and day is None],
        "filtered": any(asked.values()),
        "older": f"?{kept}&before={older}" if older else "",
        "csv": f"?{kept}&format=csv",
        "actors": known("actor_name"),
        "actions": [(action, words(action)) for action in known("action")],
    }
    return render(request, "audit/log.html", context)


def shown_row(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry for templates/audit, with the fields that it changed."""
    return {
        "entry": entry,
        "changes": changes(entry),
        "action": words(entry.action),
        "href": place(entry.action, entry.subject),
    }


def _as_csv(filters: AuditFilters) -> HttpResponse:
    rows = ([*(getattr(entry, name) for name in COLUMNS), _changed(entry)] for entry in exported(filters))
    return attachment(csv_text([*COLUMNS, "changes"], rows), "audit.csv")


def _changed(entry: AuditEntry) -> str:
    return "; ".join(f"{one['path']}: {one['old']} → {one['new']}" for one in changes(entry))


def _cursor(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) > BIGGEST_ID:
        raise Http404("That page of the audit log does not exist")
    return int(text)


def changes(entry: AuditEntry) -> list[dict[str, str]]:
    """Return the fields that differ between `before` and `after`; all fields of a new object."""
    found = differences(_by_name(entry.before or {}), _by_name(entry.after or {}))
    return [
        {"path": path, "title": _title(path), "old": _text(old), "new": _text(new)}
        for path, (old, new) in found.items()
    ]


def _title(path: str) -> str:
    """Return the title of a policy parameter; empty for any other field."""
    return PARAMETERS[path].title if path in PARAMETERS else ""


def _by_name(value: Any) -> Any:
    """Convert lists of named objects to objects, so that an added pool is a change of its own rather than of the
    list."""
    if isinstance(value, dict):
        return {key: _by_name(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        return {str(one["name"]): {key: _by_name(one[key]) for key in one if key != "name"} for one in value}
    return value


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list) and value and all(isinstance(one, str) and "," not in one for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
