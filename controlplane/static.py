"""Serves static files from their source folders."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from servestatic.middleware import ServeStaticMiddleware


class StaticFiles(ServeStaticMiddleware):
    """Looks at a file whenever it is asked for: one that an upgrade changed under a running server is served whole.

    (The sizes are otherwise those of the server's start.) Every other path is passed on without a look at the disk.
    """

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(self.static_prefix):
            return await self.get_response(request)
        return await super().__call__(request)
