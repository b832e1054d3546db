"""The routes. A new one is a file here, a line in `ROUTES`, golden cases and a section in docs/policies.md."""

from router.policy.routes import adaptive_v1, cache_aware, least_requests, lpwl, round_robin, session_sticky
from router.policy.routes.route import Route

ROUTES: dict[str, Route] = {
    module.ROUTE.name: module.ROUTE
    for module in (round_robin, least_requests, session_sticky, cache_aware, adaptive_v1, lpwl)
}

__all__ = ["ROUTES", "Route"]
