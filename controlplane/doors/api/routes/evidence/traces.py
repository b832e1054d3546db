"""Traces over REST: list, look, upload."""

from typing import Any

from django.http import HttpRequest
from ninja import Router, Status
from ninja.params.functions import Query

from controlplane.doors.api.auth import needs
from controlplane.doors.api.problems import ApiProblem
from controlplane.evidence.traces import library
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.library import TraceEntry
from controlplane.people.audit.services import actor_of
from router.contract.values.problem import Problem

router = Router(tags=["traces"])


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


@router.get("", response=list[TraceEntry], auth=needs("experiments:read"))
def list_traces(request: HttpRequest) -> Any:
    """Traces by name"""
    return library.entries()


@router.post("", response={200: TraceEntry, 201: TraceEntry}, openapi_extra=_UPLOAD, auth=needs("experiments:write"))
def upload_trace(request: HttpRequest, name: str = Query("", max_length=100)) -> Any:
    """Upload a trace as the raw body with ?name=, or as a form; the same content again answers 200"""
    name, data = _uploaded(request, name)
    row, new = library.upload(name, data, actor_of(request))
    return Status(201 if new else 200, library.entry(row.name))


@router.get("/{name}", response=TraceEntry, auth=needs("experiments:read"))
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
