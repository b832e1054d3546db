"""Matrices of experiments over REST."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from msgspec import to_builtins
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.common.attachment import attachment
from controlplane.common.csv_cell import csv_text
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import page
from controlplane.doors.api.openapi import IF_MATCH, Before, Number
from controlplane.evidence.experiments import selectors
from controlplane.evidence.experiments.matrix import services, summary
from controlplane.evidence.experiments.matrix.body import MatrixIn
from controlplane.evidence.experiments.matrix.presets import presets
from controlplane.evidence.experiments.models import Matrix
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.summarize import CLASSES
from controlplane.evidence.experiments.results.types import JobStatus, Overall
from controlplane.people.audit.services import actor_of
from fleet.selectors import store_pool

router = Router(tags=["experiments"])


class CellOut(Schema):
    """One trace at one load: an experiment."""

    id: int = Field(description="Of the experiment")
    trace: str
    load_factor: float
    status: JobStatus
    cause: str
    verdict: Overall


class MatrixOut(Schema):
    id: int
    name: str
    question: str
    actor: str
    created_at: datetime
    body: dict[str, Any]
    status: JobStatus = Field(description="Active while any cell is active; then the worst outcome")
    verdict: Overall = Field(description="Verdict over those of the cells")
    counts: dict[str, int] = Field(description="Cells by status")
    runs: int
    runs_done: int
    cells: list[CellOut]


class MatrixPresetOut(Schema):
    name: str
    title: str = Field(description="What is compared")
    arms: list[Any] = Field(description="For `POST /matrices`, and up to 6 of them for `POST /experiments`")


class CellResultsOut(Schema):
    id: int
    trace: str
    load_factor: float
    values: dict[str, dict[str, dict[str, float | None]]] = Field(description="class → metric → arm → value")
    best_or_tied: dict[str, dict[str, list[str]]] = Field(description="class → metric → arms")


class MatrixResultsOut(Schema):
    classes: list[str]
    metrics: list[dict[str, Any]]
    arms: list[str]
    cells: list[CellResultsOut] = Field(description="Those that have ended")


def matrix_out(matrix: Matrix) -> dict[str, Any]:
    cells = list(matrix.cells.all())
    own = ("name", "question", "actor", "created_at", "body")
    return {
        "id": matrix.pk,
        **{name: getattr(matrix, name) for name in own},
        **vars(summary.state_of(cells)),
        "cells": cells,
    }


@router.get("", response=list[MatrixOut], auth=needs("experiments:read"))
def list_matrices(request: HttpRequest, limit: int = Query(20, ge=1, le=100), before: Before = None) -> Any:
    """Matrices, newest first"""
    rows = selectors.matrices()
    return [matrix_out(row) for row in page(rows, before, limit)]


@router.post("", response={201: MatrixOut}, auth=needs("experiments:write"))
def start_matrix(request: HttpRequest, response: HttpResponse, payload: MatrixIn) -> Any:
    """Start traces × loads × arms × seeds in the twin: an experiment for each trace at each load"""
    made = services.start_matrix(payload, actor_of(request))
    response.headers["Location"] = f"/api/v1/matrices/{made.pk}"
    return Status(201, matrix_out(selectors.matrix(made.pk)))


@router.get("/presets", response=list[MatrixPresetOut], auth=needs("experiments:read"))
def list_matrix_presets(request: HttpRequest) -> Any:
    """Arms to start from, as the form offers them"""
    return [{"name": name, "title": title, "arms": arms} for name, (title, arms) in presets(store_pool()).items()]


@router.get("/{number}", response=MatrixOut, auth=needs("experiments:read"))
def get_matrix(request: HttpRequest, response: HttpResponse, number: Number) -> Any:
    """One matrix with the status of its cells"""
    return matrix_out(etags.of(response, selectors.matrix(number)))


@router.get("/{number}/results", response=MatrixResultsOut, auth=needs("experiments:read"))
def get_matrix_results(request: HttpRequest, number: Number, format: Literal["json", "csv"] = "json") -> Any:
    """Values of every metric by cell, class and arm, and the arms that are best or tied; ?format=csv"""
    cells = list(selectors.matrix(number).cells.all())
    if format == "csv":
        text = csv_text(summary.COLUMNS, summary.rows_of(cells), exact=True)
        return attachment(text, f"matrix-{number}.csv")
    return {
        "classes": list(CLASSES),
        "metrics": [{"key": m.key, "title": m.title, "unit": m.unit, "better": m.better} for m in METRICS.values()],
        "arms": [arm["name"] for arm in cells[0].arms],
        "cells": [
            {"id": cell.pk, "trace": cell.trace, "load_factor": cell.load_factor, **to_builtins(summary.of_cell(cell))}
            for cell in cells
            if cell.summary
        ],
    }


@router.post("/{number}/cancel", response=MatrixOut, openapi_extra=IF_MATCH, auth=needs("experiments:write"))
def cancel_matrix(request: HttpRequest, number: Number) -> Any:
    """Cancel every cell that has not ended"""
    services.cancel_matrix(selectors.matrix(number), actor_of(request), if_match=etags.if_match(request))
    return matrix_out(selectors.matrix(number))


@router.post("/{number}/resume", response=MatrixOut, openapi_extra=IF_MATCH, auth=needs("experiments:write"))
def resume_matrix(request: HttpRequest, number: Number) -> Any:
    """Queue cells that failed or were cancelled again; finished runs are kept"""
    services.resume_matrix(selectors.matrix(number), actor_of(request), if_match=etags.if_match(request))
    return matrix_out(selectors.matrix(number))
