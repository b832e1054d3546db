"""The page of the traces: a list, and a form to upload one."""

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.common.figures import UNKNOWN, significant
from controlplane.evidence.traces import library
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import BadTrace, TraceSummary
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of

STILL_RECORDED = "Still being recorded: lengths are known only for the copy that an experiment keeps."
NOT_READ = "Known once an experiment has read the file."


@require_http_methods(["GET", "POST"])
def traces(request: HttpRequest) -> HttpResponseBase:
    return _upload(request) if request.method == "POST" else _page(request)


@operator_required
def _upload(request: HttpRequest) -> HttpResponseBase:
    file = request.FILES.get("file")
    if file is None:
        return _page(request, "choose a file", status=422)
    name = request.POST.get("name", "").strip() or str(file.name)
    try:
        row, new = library.upload(name, file.read(registry.MAX_BYTES + 1), actor_of(request))
    except BadTrace as error:
        return _page(request, f"{error.path}: {error.value}; allowed is {error.allowed}", status=422)
    except library.NameTaken as error:
        return _page(request, str(error), status=409)
    stored = "stored" if new else "there already, with the same content"
    lost = _lost(library.entry(row.name).summary)
    messages.success(request, f"Trace {row.name} is {stored}.{f' {lost}.' if lost else ''}")
    return redirect("traces")


def _page(request: HttpRequest, problem: str = "", status: int = 200) -> HttpResponseBase:
    rows = [_row(entry) for entry in library.entries(with_built_in=True)]
    context = {
        "rows": rows,
        "has_sizes": any(row.entry.bytes for row in rows),
        "has_sessions": any(row.entry.summary and row.entry.summary.sessions for row in rows),
        "problem": problem,
        "formats": [kind.title for kind in registry.FORMATS.values()],
        "limit_mib": registry.MAX_BYTES >> 20,
        "folder": library.folder(),
    }
    return render(request, "traces/traces.html", context, status=status)


@dataclass(frozen=True, slots=True)
class TraceRow:
    entry: library.TraceEntry
    requests: int | None
    duration_s: float | None
    size: str
    unread: str  # why its lengths are unknown; empty if they are known
    ideal_hits: str = ""
    heavy: str = ""
    lost: str = ""  # parts of the file that are not played; empty if everything is played


def _row(entry: library.TraceEntry) -> TraceRow:
    size = f"{entry.bytes / (1 << 20):,.1f} MiB" if entry.bytes else UNKNOWN
    summary, recorded = entry.summary, entry.recorded
    if summary is not None:
        shares = _share(summary.ideal_hit_share), _share(summary.heavy_share)
        return TraceRow(entry, summary.requests, summary.duration_s, size, "", *shares, _lost(summary))
    if recorded is not None:
        return TraceRow(entry, recorded.requests, recorded.oldest_age_s - recorded.newest_age_s, size, STILL_RECORDED)
    return TraceRow(entry, None, None, size, NOT_READ)


def _lost(summary: TraceSummary | None) -> str:
    """List the parts of a file that are neither stored nor played."""
    parts = []
    if summary and summary.ignored:
        parts.append(f"Ignored columns: {', '.join(summary.ignored)}")
    if summary and summary.left_out:
        parts.append(f"Requests without an answer or its length, not played: {summary.left_out:,}")
    return ". ".join(parts)


def _share(value: float) -> str:
    return f"{significant(value * 100)} %"
