"""`GET /cli/weir`: the command for pipelines, of the version of this server."""

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.doors.api.auth import principal_of
from controlplane.doors.cli.archive import archive


@require_safe
@login_not_required  # curl has a token and expects 401 instead of a sign-in page
def command(request: HttpRequest) -> HttpResponse:
    """The `weir` program, for any bearer token or session."""
    if principal_of(request) is None:
        answer = HttpResponse("an API token is required\n", status=401, content_type="text/plain")
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    found = HttpResponse(archive(), content_type="application/zip")
    found["Content-Disposition"] = 'attachment; filename="weir"'
    return found
