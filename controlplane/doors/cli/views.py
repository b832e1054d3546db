"""`GET /cli/weir`: the pipeline command in the version of this server."""

import functools
import io
import zipfile
from pathlib import Path

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.common.attachment import attachment
from controlplane.doors.api.auth import principal_of
from router.contract.installation import VERSION

# The command as one file: an archive that Python runs, in the version of this server
_FOLDER = Path(__file__).with_name("weir")
_UNSET = 'VERSION = "unknown"'
_START = 'import runpy\n\nrunpy.run_module("weir", run_name="__main__", alter_sys=True)\n'
_SHEBANG = b"#!/usr/bin/env python3\n"


@functools.cache
def archive() -> bytes:
    """Return the archive; its bytes never vary, because a pipeline may compare or cache them."""
    written = io.BytesIO(_SHEBANG)
    written.seek(0, io.SEEK_END)
    with zipfile.ZipFile(written, "a", zipfile.ZIP_DEFLATED) as files:
        files.writestr(_entry("__main__.py"), _START)
        for path in sorted(_FOLDER.glob("*.py")):
            text = path.read_text(encoding="utf-8").replace(_UNSET, f"VERSION = {VERSION!r}", 1)
            files.writestr(_entry(f"weir/{path.name}"), text)
    return written.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # dated 1980, the default


@require_safe
@login_not_required  # curl has a token and expects 401 instead of a sign-in page
def command(request: HttpRequest) -> HttpResponse:
    """Return the `weir` program, for any bearer token or session."""
    if principal_of(request) is None:
        answer = HttpResponse("an API token is required\n", status=401, content_type="text/plain")
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    return attachment(archive(), "weir", "application/zip")
