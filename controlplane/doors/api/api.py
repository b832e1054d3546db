"""The REST API: one router per area. An operation's id is the name of its function, its summary the docstring; what all
operations share (headers, errors) is described by openapi.py."""

from controlplane.doors.api import handlers
from controlplane.doors.api.auth import needs
from controlplane.doors.api.idempotency import once
from controlplane.doors.api.tables import tabled
from controlplane.doors.api.unread import StrictJson, refuse_unread

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
api.add_router("/policies", "controlplane.doors.api.routes.traffic.policies.router")
api.add_router("/policies", "controlplane.doors.api.routes.evidence.previews.router")
api.add_router("/policies", "controlplane.doors.api.routes.evidence.tunings.router")
api.add_router("/models", "controlplane.doors.api.routes.traffic.models.router")
api.add_router("", "controlplane.doors.api.routes.traffic.deliveries.router")
api.add_router("/audit", "controlplane.doors.api.routes.people.audit.router")
api.add_router("/tokens", "controlplane.doors.api.routes.people.tokens.router")
api.add_router("/batches", "controlplane.doors.api.routes.traffic.batches.router")
api.add_router("/shares", "controlplane.doors.api.routes.people.shares.router")
api.add_router("/keys", "controlplane.doors.api.routes.traffic.keys.router")
api.add_router("/use", "controlplane.doors.api.routes.traffic.use.router")
api.add_router("/budgets", "controlplane.doors.api.routes.traffic.budgets.router")
api.add_router("", "controlplane.doors.api.routes.people.channels.router")
api.add_router("/live", "controlplane.doors.api.routes.fleet.live.router")
api.add_router("/receipts", "controlplane.doors.api.routes.evidence.receipts.router")
api.add_router("/traces", "controlplane.doors.api.routes.evidence.traces.router")
api.add_router("/experiments", "controlplane.doors.api.routes.evidence.experiments.router")
api.add_router("/matrices", "controlplane.doors.api.routes.evidence.matrices.router")
api.add_router("/plans", "controlplane.doors.api.routes.evidence.plans.router")
api.add_router("/systems", "controlplane.doors.api.routes.evidence.systems.router")
api.add_router("", "controlplane.doors.api.routes.fleet.pools.router")
api.add_router("/nodes", "controlplane.doors.api.routes.fleet.nodes.router")
api.add_router("", "controlplane.doors.api.routes.evidence.calibrations.router")
api.add_router("", "controlplane.doors.api.routes.evidence.profiles.router")
api.add_router("", "controlplane.doors.api.routes.fleet.fleet_check.router")
api.add_router("", "controlplane.doors.api.routes.fleet.fleet.router")
