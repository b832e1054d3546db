"""`/healthz` of the web process."""

import redis
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse

from controlplane.doors.api.auth import principal_of
from fleet.redis import connect


def database_reason() -> str:
    """Return the trouble; empty if the database answers."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return f"the database does not answer: {error}"
    return ""


def redis_reason() -> str:
    try:
        connect().ping()
    except redis.RedisError as error:
        return f"Redis does not answer: {error}"
    return ""


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 if all is well or only Redis is unreachable (pages still work), 503 without the database. Everyone
    gets the status; callers with the required role also get the reasons.
    """
    database, live = database_reason(), redis_reason()
    answer: dict[str, object] = {"status": "degraded" if database or live else "ok"}
    if not database and principal_of(request) is not None:
        answer["degraded"] = [reason for reason in (database, live) if reason]
    return JsonResponse(answer, status=503 if database else 200)
