"""Batches of every key over REST; clients use OpenAI's API with their key (controlplane/traffic/batches/api.py)."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema

from controlplane.common.attachment import attachment
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import found
from controlplane.doors.api.openapi import IF_MATCH, answers
from controlplane.doors.api.problems import ApiProblem
from controlplane.people.audit.services import actor_of
from controlplane.traffic.batches import services
from controlplane.traffic.batches.models import Batch

router = Router(tags=["batches"])
SHOWN = 1_000


class BatchOut(Schema):
    name: str
    key: int = Field(alias="key_id", description="Id of the API key")
    endpoint: str = Field(alias="api_path")
    state: str = Field(description="In OpenAI's words: validating, in_progress, completed, …")
    cause: str = Field(description="Of a failure or a cancellation")
    waits: str = Field(description="Why nothing of it is sent now; empty while its lines are under way or it has ended")
    asked_again_at: datetime | None = Field(
        description="Next attempt of a batch that waits for a reason other than its turn"
    )
    total: int = Field(description="Number of lines; the next two count those with a result")
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    output_file: str = Field(description="File of the answers; empty if there is none yet")
    error_file: str = Field(description="Of all others")
    created_at: datetime
    started_at: datetime | None = Field(alias="in_progress_at")
    ended_at: datetime | None
    expires_at: datetime = Field(description="End of its window; time spent waiting for other batches does not count")


@router.get("", response=list[BatchOut], auth=needs("use:read"))
def list_batches(request: HttpRequest) -> Any:
    """The newest 1,000 batches of all API keys"""
    return list(Batch.objects.all()[:SHOWN])


@router.get(
    "/{name}/{which}.jsonl", response=None, openapi_extra=answers("application/jsonl"), auth=needs("keys:write")
)
def get_batch_file(request: HttpRequest, name: str, which: Literal["output", "errors"]) -> Any:
    """The answers of a batch, or the lines that got no answer, as its client gets them; audited"""
    row = _row(name)
    path = found(services.download(row, which, actor_of(request)), f"the batch has no file of its {which}")
    return attachment(path.read_bytes(), f"{row.name}_{which}.jsonl", "application/jsonl")


@router.get("/{name}", response=BatchOut, auth=needs("use:read"))
def get_batch(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """One batch"""
    return etags.of(response, _row(name))


@router.post("/{name}/cancel", response=BatchOut, openapi_extra=IF_MATCH, auth=needs("keys:write"))
def cancel_batch(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """Cancel a batch; what was answered is kept. 409 when it has ended"""
    row = _row(name)
    if not services.cancel_batch(row, actor_of(request), if_match=etags.if_match(request)):
        raise ApiProblem(409, detail=f"the batch has ended: it is {row.state}")
    return etags.of(response, row)


def _row(name: str) -> Batch:
    return found(Batch.objects.filter(name=name).first(), f"there is no batch {name[:60]}")
