"""The pools that this router serves, and the choice of a request's pool."""

from collections.abc import Iterable, Mapping

from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.router_status import Load
from router.http.errors import ErrorResponse
from router.limits.api_key_auth import ApiKeyAuth
from router.pool.pool import Pool

NAMES_SHOWN = 20


class Pools:
    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._by_name_or_model: dict[str, Pool] = {}
        self.auth = ApiKeyAuth()

    def all(self) -> Iterable[Pool]:
        return self._pools.values()

    @property
    def known(self) -> bool:
        """The fleet of a pool has been read."""
        return any(pool.fleet_at is not None for pool in self._pools.values())

    def get(self, name: str) -> Pool | None:
        return self._pools.get(name)

    def inflight(self) -> dict[str, Load]:
        """Requests in flight by instance, for instances that have any from this router."""
        return {
            endpoint.id: (endpoint.requests, endpoint.prefill_tokens, endpoint.decodes)
            for pool in self._pools.values()
            for endpoint in pool.endpoints.values()
            if endpoint.requests
        }

    def get_or_add(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = Pool(name)
            self.changed()
        return pool

    def remove(self, name: str) -> None:
        pool = self._pools.pop(name, None)
        if pool is not None:
            pool.close()
            self.changed()

    def changed(self) -> None:
        """Call after a pool was added, removed or serves another model."""
        lasting = sorted((pool for pool in self._pools.values() if not pool.ephemeral), key=lambda pool: pool.name)
        by_alias = {alias: pool for pool in reversed(lasting) for alias in pool.aliases}
        by_model = {pool.model: pool for pool in reversed(lasting) if pool.model}
        self._by_name_or_model = by_alias | by_model | {pool.name: pool for pool in lasting}

    def models(self) -> dict[str, Pool]:
        return {
            name: pool
            for name, pool in sorted(self._by_name_or_model.items())
            if name == pool.model or name in pool.aliases
        }

    def require_key(self, key: PublishedKey | None, headers: Mapping[bytes, bytes]) -> None:
        """ErrorResponse when the request has no key and each pool that it may name requires one.

        Checked before the body is read; ApiKeyAuth.admit checks the pool that the body names.
        """
        if key is not None or self.auth.ring is None:
            return
        named = headers.get(b"x-weir-pool", b"").decode("latin-1")
        lasting = [pool.name for pool in self._pools.values() if not pool.ephemeral]
        self.auth.require([named] if named in self._pools else lasting)

    def pick(self, header: str | None, model: str) -> Pool:
        """By header, else by model or pool name, else the only pool if the body or the pool names no model."""
        if header is not None:
            return self._by_header(header)
        pool = self._by_name_or_model.get(model)
        if pool is not None:
            return pool
        lasting = [pool for pool in self._pools.values() if not pool.ephemeral]
        if not lasting:
            raise ErrorResponse(503, "no_instance_ready", "no pool is published yet: retry in 2 s", retry_after_s=2)
        if len(lasting) == 1 and (not model or not lasting[0].model):
            return lasting[0]
        raise ErrorResponse(404, "model_not_found", self._unknown(model))

    def _by_header(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            known = _listed(pool.name for pool in self._pools.values() if not pool.ephemeral)
            raise ErrorResponse(404, "pool_not_found", f"x-weir-pool: there is no pool {name[:100]!r}; known: {known}")
        return pool

    def _unknown(self, model: str) -> str:
        known = _listed(self.models())
        if not model:
            return f"model: the body names none; known: {known}"
        return f"model: there is no {model[:100]!r}; known: {known}"


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more or "none"
