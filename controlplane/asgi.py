"""The web process: Django for HTTP, Channels for the one WebSocket."""

import gc
import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

gc.disable()  # imported objects stay: collecting them would take a tenth of the start

http = get_asgi_application()  # sets up Django: the imports below load models

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.urls import path, re_path  # noqa: E402

from controlplane.base.process import migrated  # noqa: E402 - every page is imported before the first request
from controlplane.doors.api.sockets import Handshake, LiveHandshake, OwnOrigins, ShareHandshake  # noqa: E402
from controlplane.doors.web.bodies import BoundedBodies  # noqa: E402
from controlplane.live.dashboard.consumers import LiveConsumer  # noqa: E402
from controlplane.pages.shares.consumers import ShareConsumer  # noqa: E402

sockets = URLRouter([path("ws/live", LiveHandshake(LiveConsumer.as_asgi()))])  # type: ignore[arg-type]  # no view
share: Any = ShareHandshake(ShareConsumer.as_asgi())  # authenticates callers by their first message
signed_in: Any = Handshake(sockets, AuthMiddlewareStack)
application = ProtocolTypeRouter(
    {
        "http": BoundedBodies(http),
        "websocket": OwnOrigins(URLRouter([path("ws/share", share), re_path("", signed_in)])),
        "lifespan": migrated.lifespan,
    }
)
gc.freeze()
gc.enable()
