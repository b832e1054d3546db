"""The pools that this router serves, and the choice of a request's pool."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from router.contract import models
from router.contract.model_cards import Lengths, least
from router.contract.models import Alias, Models, Target
from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.codec import Unreadable
from router.contract.redis.published import ModelsValue
from router.contract.redis.router_status import NO_LOAD, Load, added
from router.contract.session_names import DEFAULT_NAMES
from router.contract.values.problem import InvalidInput
from router.http.errors import ErrorResponse
from router.limits.api_key_auth import ApiKeyAuth
from router.pool.kv_event_state import IndexLink
from router.pool.pool import Pool
from router.serving.prompt.shared_names import SharedNames

NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An entry of GET /v1/models, without `root`, where engines report a folder of their host."""

    id: str
    created: int  # Unix s
    root: str
    parent: str | None  # the base model of an adapter
    pools: tuple[str, ...]  # pools that may serve it
    max_model_len: int | None  # tokens: the minimum over the serving instances; None: unknown


class Pools:
    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._by_name_or_model: dict[str, Pool] = {}
        self.names: Models = {}  # `aliases`, plus names of pools whose engines use another name for the model
        self.aliases: Models = {}  # merged from the next two
        self._document: Models = {}  # the published document Models
        self._listed: Models = {}  # further names listed by engines
        self.models_version = 0  # version of that document; 0: none
        self._models_sha256 = ""
        self.session_names = DEFAULT_NAMES
        self.shared_names = SharedNames()
        self.auth = ApiKeyAuth()
        self.index_sockets: Sequence[str] = ()  # sockets of the host's index processes; empty: none
        self.index_links: Sequence[IndexLink] = ()  # links to the index processes

    def all(self) -> Iterable[Pool]:
        return self._pools.values()

    @property
    def known(self) -> bool:
        """Return whether the fleet of any pool has been read."""
        return any(pool.fleet_at is not None for pool in self._pools.values())

    def get(self, name: str) -> Pool | None:
        return self._pools.get(name)

    def inflight(self) -> tuple[dict[str, Load], dict[str, Load]]:
        """Return this router's requests in flight by instance and data-parallel rank."""
        by_instance: dict[str, Load] = {}
        by_rank: dict[str, Load] = {}
        for pool in self._pools.values():
            for endpoint in pool.endpoints.values():
                if not endpoint.requests:
                    continue
                load = (endpoint.requests, endpoint.prefill_tokens, endpoint.decodes)
                if endpoint.rank is None:
                    by_instance[endpoint.id] = load
                else:
                    by_rank[endpoint.id] = load
                    by_instance[endpoint.instance] = added(by_instance.get(endpoint.instance, NO_LOAD), load)
        return by_instance, by_rank

    def pulls(self) -> dict[str, int]:
        """Return this router's KV pulls under way by source endpoint."""
        every = (endpoint for pool in self._pools.values() for endpoint in pool.endpoints.values())
        return {endpoint.id: endpoint.pulls for endpoint in every if endpoint.pulls}

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
        """Update the names. Call this after a pool was added or removed, or its model changed."""
        lasting = sorted((pool for pool in self._pools.values() if not pool.ephemeral), key=lambda pool: pool.name)
        # A served pool takes precedence over an observed one with the same model.
        by_rank = sorted(reversed(lasting), key=lambda pool: not pool.observed)
        by_model = {pool.model: pool for pool in by_rank if pool.model}
        self._by_name_or_model = by_model | {pool.name: pool for pool in lasting}
        self._put_names()

    def take_models(self, value: ModelsValue) -> bool:
        """Put the published document into effect. Return False if it already is, or if it is unreadable and the old one
        stays."""
        version = (value.version, value.sha256)
        if version == (self.models_version, self._models_sha256):
            return False
        try:
            parsed = models.parse(value.document)
        except InvalidInput as error:
            raise Unreadable(f"version {value.version}: {error}") from None
        if models.sha256(value.document) != value.sha256:
            raise Unreadable(f"version {value.version}: the document does not match its sha256")
        self._document = parsed
        self._put_names()
        self.models_version, self._models_sha256 = version
        return True

    def take_listed(self, listed: Models) -> None:
        """Take over names listed by a standalone router's engines; names in the document take precedence."""
        if listed != self._listed:
            self._listed = listed
            self._put_names()

    def _put_names(self) -> None:
        self.aliases = {**self._listed, **self._document}
        served = (pool for pool in self._pools.values() if not pool.ephemeral and not pool.observed)
        own = {pool.name: Alias((Target(pool.name),)) for pool in served if pool.model not in ("", pool.name)}
        self.names = {**own, **self.aliases}

    def alias(self, name: str) -> Alias | None:
        """Return the target of the name; None for the name of a model itself, such as a pool's name that its engines
        list."""
        alias = self.names.get(name)
        if alias is None or name in self.aliases:
            return alias
        return None if any(name in listed for listed in self._listed_by(name)) else alias

    def barred(self, key: PublishedKey | None, pool: str) -> ErrorResponse | None:
        """Return why a request with the key cannot use the pool."""
        if pool not in self._pools:
            return ErrorResponse(503, "no_instance_ready", f"there is no pool {pool}: retry in 5 s", retry_after_s=5)
        if self._pools[pool].observed:
            return ErrorResponse(503, "no_instance_ready", _observed(self._pools[pool]), retry_after_s=5)
        return self.auth.refusal(key, pool)

    def troubles(self) -> list[str]:
        """Return the aliases with a target that no engine serves."""
        missing = (
            (name, sorted({target.pool for target in self.aliases[name].targets} - self._pools.keys()))
            for name in sorted(self.aliases)
        )
        gone = [f"model {name}: there is no pool {', '.join(pools)}" for name, pools in missing if pools]
        targets = ((name, target) for name in sorted(self.aliases) for target in self.aliases[name].targets)
        return gone + [
            f"model {name}: no instance of the pool {target.pool} serves {self._engines_name(target)}"
            for name, target in targets
            if target.pool in self._pools and self._is_unserved(target)
        ]

    def _is_unserved(self, target: Target) -> bool:
        """Return whether the target's pool no longer exists, or no ready instance lists the name. Adapters with a
        source are loaded by Weir.
        """
        pool = self._pools.get(target.pool)
        if pool is None:
            return True
        listed = [one.models for one in pool.endpoints.values() if one.routable]
        if not listed or not all(listed) or (target.adapter is not None and target.adapter.source):
            return False
        name = self._engines_name(target)
        return name not in pool.adapters and not any(name in models for models in listed)

    def _engines_name(self, target: Target) -> str:
        """Return the name that the pool's engines use."""
        if target.adapter is not None:
            return target.adapter.name
        pool = self._pools.get(target.pool)
        return target.model or (pool.model if pool is not None else "")

    def _length(self, targets: Iterable[Target]) -> int | None:
        """Return the model's length; for an adapter that states no length, its base model's."""
        found = (
            models.get(self._engines_name(target)) or models.get(self._pools[target.pool].model)
            for target in targets
            for models in self._listed_by(target.pool)
        )
        return least(found)

    def _listed_by(self, pool: str) -> list[Lengths]:
        """Return the names listed by the instances that take requests, or by all instances if none does."""
        endpoints = self._pools[pool].endpoints.values() if pool in self._pools else ()
        return [one.models for one in endpoints if one.routable] or [one.models for one in endpoints]

    def models(self) -> list[ServedModel]:
        """Return the models that clients may request: served names of the document, then the pools' own names."""
        serving = {pool.model: pool for pool in self._by_name_or_model.values() if pool.model and not pool.observed}
        served = {
            name: self._own_model(pool) for name, pool in serving.items() if self._by_name_or_model.get(name) is pool
        }
        servable = {name: alias for name, alias in self.aliases.items() if not self._is_ghost(alias)}
        served |= {name: self._alias(name, alias) for name, alias in servable.items()}
        return [served[name] for name in sorted(served)]

    def visible(self, key: PublishedKey | None) -> list[ServedModel]:
        """Return the models that the key may use; without a key, those of pools that do not require one."""
        return [model for model in self.models() if self._may_use(key, model)]

    def _may_use(self, key: PublishedKey | None, model: ServedModel) -> bool:
        asks = key is None or key.may_ask_for(model.id)
        return asks and any(self.auth.refusal(key, pool) is None for pool in model.pools)

    def _alias(self, name: str, alias: Alias) -> ServedModel:
        target, pools = alias.split[0], tuple(target.pool for target in alias.targets)
        pool = self._pools.get(target.pool)
        base = pool.model if pool is not None else ""
        created = int(pool.fleet_at or 0) if pool is not None else 0
        length = self._length(alias.targets)
        if target.adapter is not None:
            root, parent = _no_path(target.adapter.name, name), _no_path(base, "") or None
            return ServedModel(name, created, root, parent, pools, length)
        return ServedModel(name, created, _no_path(target.model or base, name), None, pools, length)

    def _own_model(self, pool: Pool) -> ServedModel:
        length = self._length([Target(pool.name)])
        return ServedModel(pool.model, int(pool.fleet_at or 0), pool.model, None, (pool.name,), length)

    def _is_ghost(self, alias: Alias) -> bool:
        return all(self._is_unserved(target) for target in alias.targets)

    def require_key(self, key: PublishedKey | None, headers: Mapping[bytes, bytes]) -> None:
        """Raise ErrorResponse if the request has no key and every pool that it could name requires one.
        This happens before the body is read; ApiKeyAuth.admit checks the pool that the body names.
        """
        ring = self.auth.ring
        if key is not None or ring is None or not (ring.required or ring.required_everywhere):
            return
        named = headers.get(b"x-weir-pool", b"").decode("latin-1")
        lasting = [pool.name for pool in self._pools.values() if not pool.ephemeral]
        self.auth.require([named] if named in self._pools else lasting)

    def pick(self, header: str | None, model: str, key: PublishedKey | None = None) -> Pool:
        """Pick the pool by header, else by model or pool name; if neither the body nor the pool names a model, the only
        pool. `key` is that of the request; errors name only pools and models that it may use.
        """
        if header is not None:
            return self._by_header(header, key)
        pool = self._by_name_or_model.get(model)
        if pool is not None and pool.observed:
            raise ErrorResponse(404, "model_not_found", f"model: {model[:100]!r}: {_observed(pool)}")
        if pool is not None:
            return pool
        lasting = [pool for pool in self._pools.values() if not pool.ephemeral and not pool.observed]
        if not lasting:
            raise ErrorResponse(503, "no_instance_ready", "no pool is published yet: retry in 2 s", retry_after_s=2)
        if len(lasting) == 1 and (not model or not lasting[0].model):
            return lasting[0]
        raise ErrorResponse(404, "model_not_found", self._unknown(model, key))

    def _by_header(self, name: str, key: PublishedKey | None) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            lasting = [pool.name for pool in self._pools.values() if not pool.ephemeral]
            known = _listed(name for name in lasting if self.auth.refusal(key, name) is None)
            raise ErrorResponse(404, "pool_not_found", f"x-weir-pool: there is no pool {name[:100]!r}; known: {known}")
        if pool.observed:
            raise ErrorResponse(404, "pool_not_found", f"x-weir-pool: {_observed(pool)}")
        return pool

    def _unknown(self, model: str, key: PublishedKey | None) -> str:
        known = _listed(model.id for model in self.visible(key))
        if not model:
            return f"model: the body names none; known: {known}"
        return f"model: there is no {model[:100]!r}; known: {known}"


def _no_path(name: str, instead: str) -> str:
    return instead if name.startswith(("/", ".", "~")) else name


def _observed(pool: Pool) -> str:
    return f"the pool {pool.name} is observed only: its requests do not pass through Weir"


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more or "none"
