"""Answers of the router itself: models, health, metrics, and errors for unknown paths and methods."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import orjson

from router.contract.installation import VERSION
from router.contract.redis.api_keys import PublishedKey
from router.contract.values.json_value import JsonObject
from router.http import doors
from router.http.client import ClientConnection, IncomingRequest
from router.http.clients import ClientConnections
from router.http.errors import ErrorResponse
from router.http.headers import request_id
from router.metrics import render
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.serving.pools import ServedModel

if TYPE_CHECKING:
    from router.source import PoolSource

MODELS = "/v1/models"
ONE_MODEL = "/v1/models/"
PERMISSIONS = ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
JSON = b"application/json"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"

Page = tuple[bytes, bytes]  # content type, body


class Pages:
    def __init__(self, source: "PoolSource", clients: ClientConnections) -> None:
        self._source = source
        self._clients = clients
        self._pools = source.pools
        self._pages: dict[str, Callable[[], Page]] = {
            "/healthz": self._healthz,
            "/health": self._healthz,
            "/ping": self._healthz,
            "/metrics": self._metrics,
            "/version": lambda: (JSON, orjson.dumps({"version": VERSION})),
        }

    @property
    def paths(self) -> Iterable[str]:
        return self._pages

    async def handle(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        """Answer the request. Raise ErrorResponse."""
        kind, body = self._page(incoming)
        name = request_id(dict(incoming.headers)).encode()
        lines = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (kind, len(body), name)
        client.start(200, lines)
        client.end(b"" if incoming.method == "HEAD" else body)

    def _page(self, incoming: IncomingRequest) -> Page:
        path = incoming.path
        page = self._pages.get(path)
        if page is not None:
            return page()
        if path.startswith(MODELS):
            key = self._asker(incoming)
            return self._model(path.removeprefix(ONE_MODEL), key) if path != MODELS else self._models(key)
        special = self._source.page(path, incoming.peer)
        if special is None:
            raise doors.not_served(path, "receipts of a router alone are for this machine, others are in the web pages")
        return JSON, special

    def _asker(self, incoming: IncomingRequest) -> PublishedKey | None:
        """Return the request's key. Raise ErrorResponse if one is required but missing."""
        own = dict(incoming.headers)
        key = self._pools.auth.identify(incoming, own, time.time())
        self._pools.require_key(key, own)
        return key

    def _models(self, key: PublishedKey | None) -> Page:
        data = [_described(model) for model in self._pools.visible(key)]
        return JSON, orjson.dumps({"object": "list", "data": data})

    def _model(self, name: str, key: PublishedKey | None) -> Page:
        served = {model.id: model for model in self._pools.visible(key)}
        if name not in served:
            known = ", ".join(served) or "none"
            raise ErrorResponse(404, "model_not_found", f"there is no model {name[:100]!r}; known: {known}")
        return JSON, orjson.dumps(_described(served[name]))

    def _healthz(self) -> Page:
        """Answer 200 while the router serves: a load balancer must not remove it because Redis is down."""
        now = time.time()
        degraded, looked_at = [*self._source.degraded(), *self._clients.degraded()], self._source.looked_at
        pools = {
            pool.name: {
                "model": pool.model,
                "policy": pool.policy_name,
                "version": pool.version,
                "split": _split(pool),
                "fleet_age_s": round(now - looked_at, 3) if looked_at is not None else None,
                "fleet_at": pool.fleet_at,
                "ready": pool.ready,
                "instances": len({endpoint.instance for endpoint in pool.endpoints.values()}),
                "indexes": _indexes(pool),
            }
            for pool in self._pools.all()
        }
        return JSON, orjson.dumps(
            {
                "status": "degraded" if degraded else "ok",
                "id": self._source.id,
                "weir": VERSION,
                "degraded": degraded,
                "models": self._pools.models_version,
                "warnings": self._pools.auth.warnings(),
                **self._source.health(),
                "pools": pools,
            }
        )

    def _metrics(self) -> Page:
        return TEXT, render(self._source, self._clients)


def _indexes(pool: Pool) -> list[JsonObject]:
    """Count the instances, or ranks, by prefix index in use and by the reason why no better index is used. The reason's
    text contains addresses and folders, so it appears only in the log, in receipts and on pages that require signing
    in.
    """
    groups: dict[tuple[str, str, str], list[Endpoint]] = {}
    for endpoint in pool.endpoints.values():
        belief = endpoint.belief
        groups.setdefault((belief.index, belief.reason, belief.but_for), []).append(endpoint)
    return [
        {
            "index": index,
            "reason": reason,
            "but_for": but_for,
            "n": len(alike),
            "first": alike[0].id,
        }
        for (index, reason, but_for), alike in sorted(groups.items(), key=lambda group: group[0])
    ]


def _split(pool: Pool) -> JsonObject | None:
    """Return the state of a delivery's split in this router; None without a delivery."""
    if pool.split is None:
        return None
    rollout = pool.split.rollout
    return {
        "state": pool.split.state(time.perf_counter()),
        "delivery": rollout.delivery,
        "generation": rollout.generation,
        "candidate": rollout.candidate.version,
        "share": rollout.share,
        "shadow": rollout.shadow,
    }


def _permission(model: ServedModel) -> JsonObject:
    """Return the field `permission` in the engines' format, since some clients require it."""
    allowed = {name: name in ("sampling", "logprobs", "view") for name in PERMISSIONS}
    return {
        "id": f"modelperm-{model.id}",
        "object": "model_permission",
        "created": model.created,
        **{f"allow_{name}": is_allowed for name, is_allowed in allowed.items()},
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


def _described(model: ServedModel) -> JsonObject:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "weir",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
        "permission": [_permission(model)],
    }
