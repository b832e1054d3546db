"""Serves static files from their source folders."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from servestatic.middleware import ServeStaticMiddleware


class StaticFiles(ServeStaticMiddleware):
    """Checks a file's size at each request, as an upgrade may replace the file under a running server.
    Other paths pass on without access to the disk.
    """

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(self.static_prefix):
            response: HttpResponseBase = await self.get_response(request)
        else:
            response = await super().__call__(request)
        return response
