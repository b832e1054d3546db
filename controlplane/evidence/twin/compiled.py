"""The modules on the path of a simulation. Searches run them compiled, because they play a trace hundreds of times."""

from fleet.engine.compiled import ENGINE
from router.compiled import CompiledCopy
from router.request_path import ROUTER

PLAYS = CompiledCopy(
    "controlplane.evidence.twin.simulation",
    (
        "arrivals",
        "call",
        "chains",
        "index",
        "kv_event_view",
        "sim_endpoint",
        "sim_router",
        "simulate",
        "transfers",
    ),
)
COPIES = (ROUTER, ENGINE, PLAYS)
