"""The REST API: one router per area. An operation's id is the name of its function, its summary the docstring; what all
operations share (headers, errors) is described by openapi.py."""

from controlplane.api import handlers
from controlplane.api.auth import needs
from controlplane.api.idempotency import once
from controlplane.api.parser import StrictJson
from controlplane.api.tables import tabled
from controlplane.api.unread import refuse_unread

api = handlers.WeirApi(
    title="Weir",
    version="1",
    description="Fleet, policies, experiments and live state. Errors are problem+json (RFC 9457). "
    "Unknown fields are refused, and query parameters where something changes. POSTs may carry an Idempotency-Key; "
    "what can be changed carries an ETag for If-Match.",
    docs_url=None,  # the interactive pages load their scripts from elsewhere
    openapi_url="/openapi.json",
    auth=needs(),
    parser=StrictJson(),
    urls_namespace="api",
)
handlers.install(api)
api.add_decorator(refuse_unread, mode="view")
api.add_decorator(tabled, mode="view")
api.add_decorator(once, mode="view")

# One line per area.
api.add_router("/policies", "controlplane.api.routes.policies.router")
api.add_router("/policies", "controlplane.api.routes.previews.router")
api.add_router("/policies", "controlplane.api.routes.tunings.router")
api.add_router("/models", "controlplane.api.routes.models.router")
api.add_router("", "controlplane.api.routes.deliveries.router")
api.add_router("/audit", "controlplane.api.routes.audit.router")
api.add_router("/tokens", "controlplane.api.routes.tokens.router")
api.add_router("/batches", "controlplane.api.routes.batches.router")
api.add_router("/shares", "controlplane.api.routes.shares.router")
api.add_router("/keys", "controlplane.api.routes.keys.router")
api.add_router("/use", "controlplane.api.routes.use.router")
api.add_router("/budgets", "controlplane.api.routes.budgets.router")
api.add_router("", "controlplane.api.routes.channels.router")
api.add_router("/live", "controlplane.api.routes.live.router")
api.add_router("/receipts", "controlplane.api.routes.receipts.router")
api.add_router("/traces", "controlplane.api.routes.traces.router")
api.add_router("/experiments", "controlplane.api.routes.experiments.router")
api.add_router("/matrices", "controlplane.api.routes.matrices.router")
api.add_router("/systems", "controlplane.api.routes.systems.router")
api.add_router("", "controlplane.api.routes.pools.router")
api.add_router("/nodes", "controlplane.api.routes.nodes.router")
api.add_router("", "controlplane.api.routes.calibrations.router")
api.add_router("", "controlplane.api.routes.profiles.router")
api.add_router("", "controlplane.api.routes.fleet_check.router")
api.add_router("", "controlplane.api.routes.fleet.router")
