"""The exception handlers that make every error under /api/ problem+json."""

import errno
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DatabaseError, InterfaceError
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError, ValidationErrorContext
from ninja.operation import Operation
from pydantic_core import ErrorDetails
from redis import ConnectionError as NoConnection
from redis import ReadOnlyError, RedisError
from redis import TimeoutError as NoAnswerInTime

from controlplane.common.as_seen import ChangedMeanwhile
from controlplane.common.computing import Busy, NotComputed
from controlplane.common.database_trouble import trouble_of
from controlplane.common.input_errors import problem_of
from controlplane.doors.api.auth import TokenOrSession
from controlplane.doors.api.openapi import describe, describe_table, name_schemas
from controlplane.doors.api.problems import ApiProblem, response
from controlplane.doors.api.tables import table_of
from controlplane.evidence.traces.library import NameTaken, NoSuchTrace
from controlplane.evidence.traces.types import BadTrace
from controlplane.traffic.policies import errors as policy_errors
from controlplane.traffic.policies.drafts.conflicts import disputes
from fleet.services import FleetChanged, NotPossible, digest
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import InvalidFleet
from router.contract.values.problem import InvalidInput, Problem

log = structlog.get_logger(__name__)


class InvalidFields(ValidationError):
    """Ninja's error, with its fields as problems."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__([])
        self.problems = problems


class WeirApi(NinjaAPI):
    """The API, which keeps the rejected value in validation errors; ninja drops it."""

    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        return InvalidFields([_field(error, context.model) for context in error_contexts for error in _raw(context)])

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__

    def get_openapi_schema(self, **kwargs: Any) -> Any:
        return self._described

    @functools.cached_property
    def _described(self) -> Any:
        """Return the document. It is built once, because it takes most of a second of CPU time and unauthenticated
        clients may request it."""
        schema = super().get_openapi_schema()
        scopes, tables = self._scopes(), self._tables()
        for methods in schema["paths"].values():
            for method, operation in methods.items():
                if operation["operationId"] in tables:
                    describe_table(operation)
                describe(method, operation)
                operation["security"] = [{"TokenOrSession": scopes[operation["operationId"]]}]
        name_schemas(schema)
        return schema

    def _tables(self) -> set[str]:
        """Return the operations whose list is available as CSV or Parquet."""
        operations = (
            one for _, router in self._routers for view in router.path_operations.values() for one in view.operations
        )
        return {self.get_openapi_operation_id(operation) for operation in operations if table_of(operation) is not None}

    def _scopes(self) -> dict[str, list[str]]:
        """Return the scopes of each operation, which ninja leaves empty."""
        views = [view for _, router in self._routers for view in router.path_operations.values()]
        return {
            self.get_openapi_operation_id(operation): list(auth.scopes)
            for view in views
            for operation in view.operations
            for auth in operation.auth_callbacks
            if isinstance(auth, TokenOrSession)
        }


def _raw(context: ValidationErrorContext[Any]) -> list[ErrorDetails]:
    return context.pydantic_validation_error.errors(include_url=False)


def _field(error: ErrorDetails, model: Any) -> Problem:
    location = model.__ninja_flatten_map_reverse__.get(error["loc"], error["loc"])
    # The location of a whole body starts with the parameter's name.
    if model.__ninja_param_source__ == "body" and len(location) > 1:
        location = location[1:]
    problem = problem_of(error, location)
    return replace(problem, allowed=_fields(model, problem.path)) if error["type"] == "extra_forbidden" else problem


def _fields(model: Any, path: str) -> str:
    """Return the names of a body's fields, so that an unknown field gets a suggestion."""
    bodies = [field.annotation for field in model.model_fields.values()]
    return ", ".join(getattr(bodies[0], "model_fields", ())) if len(bodies) == 1 and "." not in path else ""


def from_validation(error: InvalidFields) -> ApiProblem:
    return ApiProblem(422, errors=error.problems, detail="some fields are missing or not valid")


def from_http_error(error: HttpError) -> ApiProblem:
    """Return the problem of a body that cannot be parsed; the exception's cause has the reason."""
    cause = error.__cause__
    if isinstance(cause, ApiProblem):
        return cause
    if isinstance(cause, ValueError):
        return ApiProblem(error.status_code, detail=f"the body is not JSON: {cause}")
    return ApiProblem(error.status_code, detail=error.message)


def unauthenticated(_: Exception | None = None) -> ApiProblem:
    detail = "send an API token as `Authorization: Bearer weir_…`, or sign in"
    return ApiProblem(401, detail=detail, headers={"WWW-Authenticate": 'Bearer realm="weir"'})


def is_full(error: BaseException | None) -> bool:
    """Return whether a write failed because the disk is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def full() -> ApiProblem:
    return ApiProblem(507, detail="the disk of the data folder is full: nothing was kept; free space and send it again")


def from_crash(error: Exception) -> ApiProblem:
    if is_full(error):
        log.error("api.disk_full", error=str(error))
        return full()
    log.error("api.crashed", exc_info=error)
    return ApiProblem(500, detail="the error is in the log under this request id")


def from_redis(error: RedisError) -> ApiProblem:
    """Answer 503 if Redis is unreachable or read-only; other errors, such as a wrong type, are crashes."""
    if isinstance(error, NoConnection | NoAnswerInTime | ReadOnlyError):
        return ApiProblem(503, detail=f"Redis does not answer: {error}")
    return from_crash(error)


def from_database(error: Exception) -> ApiProblem:
    trouble = trouble_of(error)
    if not trouble:
        return from_crash(error)
    log.error("api.database_away", exc_info=error)
    return ApiProblem(503, detail=trouble)


def from_large_body(_: Exception) -> ApiProblem:
    return ApiProblem(413, detail=f"the body may have at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes")


def from_conflict(error: policy_errors.Conflict) -> ApiProblem:
    fields = [
        {"path": d.path, "base": d.base, "theirs": d.theirs, "mine": d.mine}
        for d in disputes(error.base, error.theirs, error.mine)
        if error.mine
    ]
    status = 412 if error.kind in ("draft", "stale") else 409
    return ApiProblem(status, detail=str(error), conflicts=fields, current=error.current)


def from_changed(error: ChangedMeanwhile) -> ApiProblem:
    return ApiProblem(412, detail=str(error), current=error.current)


def from_fleet_changed(error: FleetChanged) -> ApiProblem:
    return ApiProblem(412, detail=str(error), current=digest())


def from_rules(error: policy_errors.RulesForbid) -> ApiProblem:
    """Return 403 if the rules forbid the change, 409 if something else prevents it."""
    in_the_way = [each for each in error.refusals if isinstance(each, policy_errors.Conflict)]
    status = 409 if len(in_the_way) == len(error.refusals) else 403
    current = next((each.current for each in in_the_way), "")
    return ApiProblem(status, detail="the rules of a policy forbid it", errors=error.problems, current=current)


def from_trace(error: BadTrace) -> ApiProblem:
    return ApiProblem(422, "The trace is not valid", errors=error.problems, detail=str(error))


def _status(status: int) -> Callable[[Exception], ApiProblem]:
    return lambda error: ApiProblem(status, detail=str(error))


def install(api: NinjaAPI) -> None:
    table: dict[type[Exception], Callable[[Any], ApiProblem]] = {
        ApiProblem: lambda error: error,
        ChangedMeanwhile: from_changed,
        policy_errors.Conflict: from_conflict,
        policy_errors.RulesForbid: from_rules,
        InvalidInput: lambda error: ApiProblem(422, detail=str(error), errors=error.problems),
        InvalidFleet: lambda error: ApiProblem(422, detail="the fleet document is not valid", errors=error.problems),
        BadTrace: from_trace,
        NameTaken: _status(409),
        NoSuchTrace: _status(404),
        NotPossible: _status(409),
        RedisError: from_redis,
        Busy: _status(429),
        NotComputed: _status(503),
        FleetChanged: from_fleet_changed,
        UnreadableDocument: _status(400),
        InvalidFields: from_validation,
        AuthenticationError: unauthenticated,
        HttpError: from_http_error,
        Http404: _status(404),
        RequestDataTooBig: from_large_body,
        PermissionDenied: _status(403),
        DatabaseError: from_database,
        InterfaceError: from_database,
        Exception: from_crash,
    }
    for kind, convert in table.items():
        api.add_exception_handler(kind, _handler(convert))


def _handler(convert: Callable[[Any], ApiProblem]) -> Callable[[HttpRequest, Any], HttpResponse]:
    return lambda request, error: response(request, convert(error))
