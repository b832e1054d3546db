"""The instance that stores each response of /v1/responses, so that later references are sent there. Only the process
that generated a response has it. The routers remember the instance and its epoch under the API key of the request, so
that no other key can reach the response.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.published import StoredResponse, name_of
from router.contract.values import lax
from router.http.client import ClientConnection
from router.http.errors import ErrorResponse
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.serving.answer.response_id import IdNoted
from router.serving.pools import Pools
from router.tokenize import Prompt

PATH = "/v1/responses"
KEPT = 100_000  # responses known to this router
WHOLE = "send the whole conversation as input, without previous_response_id"


class SharedResponses(Protocol):
    """The responses that routers share (router/sync/response_directory.py)."""

    def kept(self, key_id: str, name: str, owner: StoredResponse, *, replaces: bool = False) -> None: ...

    async def look_up(self, name: str) -> StoredResponse | None: ...

    async def forget(self, key_id: str, name: str) -> None: ...


V = TypeVar("V")


class FairlyKept(Generic[V]):
    """Values by API key and name. If there are too many, the key with the most loses its oldest ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._of_keys: dict[str, OrderedDict[str, V]] = {}

    def __len__(self) -> int:
        return self._count

    def get(self, key_id: str, name: str) -> V | None:
        return self._of_keys[key_id].get(name) if key_id in self._of_keys else None

    def put(self, key_id: str, name: str, value: V) -> None:
        mine = self._of_keys.setdefault(key_id, OrderedDict())
        self._count += name not in mine
        mine[name] = value
        mine.move_to_end(name)
        if self._count > self._most:
            largest = max(self._of_keys.values(), key=len)
            for _ in range(max(1, len(largest) // 10)):  # several at once, because finding the largest takes time
                largest.popitem(last=False)
                self._count -= 1

    def remove(self, key_id: str, name: str) -> None:
        mine = self._of_keys.get(key_id)
        if mine is not None and name in mine:
            del mine[name]
            self._count -= 1
            if not mine:
                del self._of_keys[key_id]

    def first(self, count: int) -> list[tuple[str, str, V]]:
        """Return some of the values, each key's oldest first."""
        return list(islice(self._each(), count))

    def _each(self) -> Iterator[tuple[str, str, V]]:
        return ((key_id, name, value) for key_id, mine in self._of_keys.items() for name, value in mine.items())


class StoredResponses:
    def __init__(self, pools: Pools, shared: SharedResponses | None = None) -> None:
        self._pools = pools
        self._shared = shared
        self._owners = FairlyKept[StoredResponse](KEPT)

    def __len__(self) -> int:
        return len(self._owners)

    def noting(self, call: Call, endpoint: Endpoint, client: ClientConnection, *, streams: bool) -> ClientConnection:
        """Wrap the client's connection so that the instance of the response passing through is remembered."""
        if call.request.prompt.document.get("store") is False:
            return client
        model = call.alias.name if call.alias is not None and call.alias.renames else ""
        owner = StoredResponse(pool=call.pool.name, instance=endpoint.instance, epoch=endpoint.epoch, model=model)

        def note(response_id: str) -> None:
            key_id = _id_of(call.key)
            name = name_of(key_id, response_id)
            known = self._owners.get(key_id, name) or owner
            if known != owner and self.endpoints(known):
                # Requests that continue another engine's response must not be sent to an engine that merely names it
                return
            self._owners.put(key_id, name, owner)
            if self._shared is not None:
                self._shared.kept(key_id, name, owner, replaces=known != owner)

        return IdNoted(client, note, streams=streams)

    async def owner(self, key: PublishedKey | None, response_id: str) -> StoredResponse | None:
        key_id = _id_of(key)
        name = name_of(key_id, response_id)
        owner = self._owners.get(key_id, name)
        if owner is None and self._shared is not None:
            owner = await self._shared.look_up(name)
        if owner is not None:
            self._owners.put(key_id, name, owner)
        return owner or self._only_instance(key)

    def _only_instance(self, key: PublishedKey | None) -> StoredResponse | None:
        """Return the pool's only instance, unless keys separate clients; it knows best which responses it has."""
        if key is not None:
            return None
        pools = [pool for pool in self._pools.all() if not pool.ephemeral and not pool.observed]
        alone = [endpoint for pool in pools for endpoint in pool.endpoints.values()]
        if len(pools) != 1 or len({endpoint.instance for endpoint in alone}) != 1:
            return None
        return StoredResponse(pool=pools[0].name, instance=alone[0].instance, epoch=alone[0].epoch)

    async def forget(self, key: PublishedKey | None, response_id: str) -> None:
        key_id = _id_of(key)
        name = name_of(key_id, response_id)
        self._owners.remove(key_id, name)
        if self._shared is not None:
            await self._shared.forget(key_id, name)

    def endpoints(self, owner: StoredResponse) -> list[Endpoint]:
        """Return the endpoints of the process that stores the response; empty once the process has ended."""
        pool = self._pools.get(owner.pool)
        living = pool.endpoints_of(owner.instance) if pool is not None else []
        return [endpoint for endpoint in living if endpoint.epoch == owner.epoch]

    def why_gone(self, owner: StoredResponse) -> str:
        pool = self._pools.get(owner.pool)
        restarted = pool is not None and bool(pool.endpoints_of(owner.instance))
        return f"{owner.instance}, which stored it, {'was restarted' if restarted else 'has left the fleet'}"

    # Requests that continue a response

    async def find_owner(self, call: Call, read: Prompt) -> None:
        """Set the owner of the response that the request continues. Raise ErrorResponse."""
        previous = read.document.get("previous_response_id")
        if not isinstance(previous, str) or not previous:
            return
        call.owner = await self.owner(call.key, previous)
        if call.owner is None:
            raise not_found(previous, f"no request of {_whose(call.key)} made it here, or it was too long ago")
        if not self.endpoints(call.owner):
            raise not_found(previous, self.why_gone(call.owner))

    def hold(self, call: Call, now: float) -> None:
        """Restrict the request to the instance that stored its previous response. `now` is the loop's time. Raise
        ErrorResponse if the request cannot be served."""
        owner, document = call.owner, call.request.prompt.document
        if _asks_for_background(call) and call.most is not None:
            message = "background: what it computes cannot be charged to limits and budgets: leave it out, or stream"
            raise ErrorResponse(400, "background_not_metered", message)
        if owner is None:
            return
        previous = str(document.get("previous_response_id"))
        if call.pool.name != owner.pool:
            raise not_found(previous, f"the pool {owner.pool} stored it, and the request is for {call.pool.name}")
        endpoints = self.endpoints(owner)
        if not endpoints:
            raise not_found(previous, self.why_gone(owner))
        if all(endpoint.role == "decode" for endpoint in endpoints):
            raise not_found(previous, f"{owner.instance}, which stored it, computes no prompts")
        open_s: float = call.rules["failure.breaker_open_s"]
        refusals = [endpoint.refusal(now, open_s) for endpoint in endpoints]
        if all(refusals) and not any(endpoint.asleep for endpoint in endpoints):
            why = f"{owner.instance}, which stored {previous[:100]!r}, takes no requests ({refusals[0]})"
            raise ErrorResponse(503, "no_instance_ready", f"{why}: retry in 5 s, or {WHOLE}", retry_after_s=5)
        why = f"{owner.instance} stored the response that it continues"
        call.outside = {one.id: why for one in call.pool.endpoints.values() if one.instance != owner.instance}


def is_in_background(call: Call) -> bool:
    """Return whether the response may be generated after the answer, in which case the answer is no sign of
    progress."""
    return not call.request.prompt.stream and _asks_for_background(call)


def _asks_for_background(call: Call) -> bool:
    return lax.is_true(call.request.prompt.document.get("background"))


def _id_of(key: PublishedKey | None) -> str:
    return key.id if key is not None else ""


def _whose(key: PublishedKey | None) -> str:
    return f"the API key {key.name}" if key is not None else "a client without an API key"


def not_found(response_id: str, why: str) -> ErrorResponse:
    message = f"previous_response_id: there is no response {response_id[:100]!r}: {why}: {WHOLE}"
    return ErrorResponse(404, "previous_response_not_found", message)
