"""Traces over REST: list, look, upload."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.doors.api.auth import needs
from controlplane.doors.api.problems import ApiProblem
from controlplane.evidence.traces import library
from controlplane.evidence.traces.formats import registry
from controlplane.people.audit.services import actor_of
from router.contract.values.problem import Problem

router = Router(tags=["traces"])


class SummaryOut(Schema):
    requests: int
    sessions: int = Field(description="0 when the trace has no such data")
    duration_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    ideal_hit_share: float = Field(description="Share of prompt tokens that an unbounded prefix cache holds, 0–1")
    heavy_share: float = Field(description="Share of requests with at least 20,000 uncached tokens, 0–1")
    ignored: list[str] = Field([], description="Fields of the file that no request keeps")
    left_out: int = Field(0, description="Requests of the file that are not played: unanswered, or of unknown length")


class RecordedOut(Schema):
    requests: int = Field(description="Finished requests, served or not")
    oldest_age_s: float
    newest_age_s: float


class TraceOut(Schema):
    name: str
    format: str
    source: str = Field(description="built-in, upload, folder or recorded")
    bytes: int
    summary: SummaryOut | None = Field(description="null until the file has been read")
    recorded: RecordedOut | None = Field(None, description="For recorded traffic: what is recorded now")


_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FORM = {
    "schema": {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}, "name": {"type": "string"}},
        "required": ["file"],
    }
}
_UPLOAD = {
    "requestBody": {
        "required": True,
        "description": f"The file (at most {registry.MAX_BYTES >> 20} MiB): "
        + "; ".join(kind.title for kind in registry.FORMATS.values()),
        "content": {"application/octet-stream": _BINARY, "text/csv": _BINARY, "multipart/form-data": _FORM},
    },
}


@router.get("", response=list[TraceOut], auth=needs("experiments:read"))
def list_traces(request: HttpRequest) -> Any:
    """Traces by name"""
    return library.entries()


@router.post("", response={200: TraceOut, 201: TraceOut}, openapi_extra=_UPLOAD, auth=needs("experiments:write"))
def upload_trace(request: HttpRequest, name: str = Query("", max_length=100)) -> Any:
    """Upload a trace as the raw body with ?name=, or as a form; the same content again answers 200"""
    name, data = _uploaded(request, name)
    row, new = library.upload(name, data, actor_of(request))
    return Status(201 if new else 200, library.entry(row.name))


@router.get("/{name}", response=TraceOut, auth=needs("experiments:read"))
def get_trace(request: HttpRequest, name: str) -> Any:
    """One trace"""
    return library.entry(name)


def _uploaded(request: HttpRequest, name: str) -> tuple[str, bytes]:
    """(name, content) of the upload. At most one byte over the limit is read before it is refused."""
    if request.content_type == "multipart/form-data":
        file = request.FILES.get("file")
        if file is None:
            raise ApiProblem(422, errors=[Problem("file", None, "the form needs a file")])
        return name or str(request.POST.get("name") or file.name), file.read(registry.MAX_BYTES + 1)
    return name, request.read(registry.MAX_BYTES + 1)
