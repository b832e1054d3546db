"""`GET /cli/weir`: the command for pipelines, of the version of this server."""

from pathlib import Path

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.api.auth import principal_of
from router.contract.version import VERSION

_FILE = Path(__file__).with_name("weir.py")
_UNSET = 'VERSION = "unknown"'


@require_safe
@login_not_required  # curl has a token and expects 401 instead of a sign-in page
def command(request: HttpRequest) -> HttpResponse:
    """For any bearer token or session."""
    if principal_of(request) is None:
        answer = HttpResponse("an API token is required\n", status=401, content_type="text/plain")
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    text = _FILE.read_text(encoding="utf-8").replace(_UNSET, f"VERSION = {VERSION!r}", 1)
    found = HttpResponse(text, content_type="text/x-python; charset=utf-8")
    found["Content-Disposition"] = 'attachment; filename="weir"'
    return found
