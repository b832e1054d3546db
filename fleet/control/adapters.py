"""Places LoRA adapters: the control worker decides (`adapters_step`), each node's worker loads and unloads. An order to
a node names only an instance; the rows define what to load and unload there, so an order may arrive late or twice. An
instance is published as a home once its engine lists the adapter.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping

import httpx
import orjson
from django.utils import timezone

from fleet import events
from fleet.control.publish import publish_fleet
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.models import AdapterDemand, AdapterHome, Instance, Pool, State
from fleet.plan.adapters import FAILURES, AdapterHomes, AdapterHost, HomeChange, WantedAdapter, next_demand, plan_homes
from fleet.snapshot import samples_of
from fleet.spec import allow_lists
from router.contract.models import Adapter
from router.contract.net.pinned_http import EngineTransport, ask_through
from router.contract.redis.sample import InstanceSample

log = logging.getLogger(__name__)

TIMEOUT_S = 120.0  # limit for a load, during which the engine reads the adapter from disk
ASK_S = 5.0  # limit for listing an engine's models
AGAIN_S = 5.0  # interval before an order that failed or was not carried out is sent again
LOOK_S = 30.0  # interval between two checks of an instance's adapters
LARGEST = 1024 * 1024  # bytes of an answer
TEXT = 500  # characters of an engine's error

Send = Callable[[str, str, str, int], None]  # (order, node, instance, epoch)
Wanted = Mapping[tuple[str, str], Adapter]  # by pool and name
_ordered_at: dict[str, dt.datetime] = {}  # by instance; kept in the leading control worker's process


def adapters_step(now: dt.datetime, wanted: Wanted, send: Send) -> list[HomeChange]:
    """Decide where adapters belong, record it and send the orders. Return the changes."""
    rows = [row for row in _instances() if _slots(row)]
    if not rows:
        _ordered_at.clear()
        return []
    _forget(rows, wanted)
    samples = samples_of(rows)
    demands = _demands(rows, samples, wanted, now)
    asked = [
        WantedAdapter(pool, name, adapter.source, adapter.replicas + demands.get((pool, name), 0))
        for (pool, name), adapter in wanted.items()
        if adapter.source
    ]
    by_name = {row.name: row for row in rows}
    changes = plan_homes(asked, [_host(row) for row in rows])
    for change in changes:
        _note(by_name[change.instance], change)
    changed = {change.instance for change in changes}
    for row in rows:
        if row.name in changed or _due(row, now):
            _ordered_at[row.name] = now
            send("adapt", row.node, row.name, row.epoch)
    return changes


def _instances() -> Iterable[Instance]:
    ready = Instance.objects.filter(state=State.READY, asleep=None, pool__removed=False)
    return ready.select_related("pool").prefetch_related("adapters").order_by("name")


def _slots(row: Instance) -> int:
    """Return the number of adapter slots of an instance; 0 if its options are no longer valid."""
    try:
        kind = KINDS[row.pool.kind]
        return kind.adapter_slots(build(kind.spec, row.started_from.engine))
    except LookupError:
        return 0


def _forget(rows: Iterable[Instance], wanted: Wanted) -> None:
    """Delete rows of earlier processes, and failures of adapters that are no longer wanted."""
    for row in rows:
        for home in list(row.adapters.all()):
            failed = home.state == AdapterHome.State.FAILED and (row.pool.name, home.name) not in wanted
            if home.epoch != row.epoch or failed:
                AdapterHome.objects.filter(pk=home.pk, epoch=home.epoch).delete()
    for row in rows:
        row._prefetched_objects_cache = {}  # type: ignore[attr-defined]


def _host(row: Instance) -> AdapterHost:
    homes = {home.name: home.state for home in row.adapters.all() if home.epoch == row.epoch and home.source}
    return AdapterHost(row.name, row.pool.name, _slots(row), row.facts.role, homes)  # type: ignore[arg-type]


def _note(row: Instance, change: HomeChange) -> None:
    if not change.loads:
        mine = AdapterHome.objects.filter(instance=row, name=change.name, epoch=row.epoch)
        mine.update(state=AdapterHome.State.LEAVING, since=timezone.now())
        publish_fleet(row.pool.name)  # stops new requests before the adapter is unloaded
        return
    # An adapter that was loaded by someone else already has a row.
    found = {"epoch": row.epoch, "source": change.source}
    AdapterHome.objects.update_or_create(instance=row, name=change.name, defaults=found)


def _due(row: Instance, now: dt.datetime) -> bool:
    """Return whether work is left to do, or the instance has not been checked for a while."""
    last = _ordered_at.get(row.name)
    if last is None:
        return True
    waiting = any(home.state in ("loading", "leaving") for home in row.adapters.all())
    return (now - last).total_seconds() >= (AGAIN_S if waiting else LOOK_S)


def _demands(
    rows: Iterable[Instance], samples: Mapping[str, InstanceSample], wanted: Wanted, now: dt.datetime
) -> dict[tuple[str, str], int]:
    """Return how many homes each adapter needs beyond its replicas, by the load of its current homes."""
    known = {(one.pool.name, one.name): one for one in AdapterDemand.objects.select_related("pool")}
    pools = {row.pool.name: row.pool for row in rows}
    found = {}
    for key in wanted:
        homes = [
            row
            for row in rows
            if row.pool.name == key[0] and any(h.name == key[1] and h.held for h in row.adapters.all())
        ]
        full = [_is_full(samples.get(row.name)) for row in homes]
        one = known.pop(key, None)
        before = (
            AdapterHomes(one.extra, _unix(one.full_since), _unix(one.calm_since)) if one is not None else AdapterHomes()
        )
        after = next_demand(before, full, now.timestamp())
        if after != before and key[0] in pools:
            _keep(pools[key[0]], key[1], after)
        found[key] = after.extra
    for gone in known.values():
        gone.delete()
    return found


def _is_full(sample: InstanceSample | None) -> bool:
    return sample is not None and (sample.waiting or 0) > 0


def _keep(pool: Pool, name: str, demand: AdapterHomes) -> None:
    values = {"extra": demand.extra, "full_since": _when(demand.full_since), "calm_since": _when(demand.calm_since)}
    AdapterDemand.objects.update_or_create(pool=pool, name=name, defaults=values)


def _unix(at: dt.datetime | None) -> float | None:
    return at.timestamp() if at is not None else None


def _when(at: float | None) -> dt.datetime | None:
    return dt.datetime.fromtimestamp(at, dt.UTC) if at is not None else None


# On the node


class AdapterRefused(Exception):
    """The engine refused; the message is the engine's."""


def adapt_instance(name: str, epoch: int) -> bool:
    """Load and unload adapters until the engine matches the rows. Return False if the order is void or the engine
    fails."""
    row = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.READY).first()
    if row is None or not row.url:
        return False
    try:
        changed = _adapt(row)
    except AdapterRefused as error:
        log.warning("adapters of %s: %s", name, error)
        return False
    if changed:
        publish_fleet(row.pool.name)
    return True


def _adapt(row: Instance) -> bool:
    homes = {home.name: home for home in AdapterHome.objects.filter(instance=row, epoch=row.epoch)}
    listed = _listed(row)
    changed = _found_there(row, homes, listed)
    for home in homes.values():
        if home.state == "loading" and home.source:
            changed |= _load(row, home, listed)
        elif home.state == "leaving":
            changed |= _unload(row, home, listed)
        elif home.state == "loaded" and home.name not in listed:
            changed |= _move(home, "loading" if home.source else "leaving", "the engine no longer lists it")
    return changed


def _found_there(row: Instance, homes: dict[str, AdapterHome], listed: Mapping[str, str]) -> bool:
    """Record adapters loaded by someone else."""
    new = [name for name in listed if name not in homes and len(name) <= 100]
    for name in new:
        AdapterHome.objects.get_or_create(
            instance=row, name=name, defaults={"epoch": row.epoch, "state": AdapterHome.State.LOADED}
        )
    return bool(new)


def _load(row: Instance, home: AdapterHome, listed: Mapping[str, str]) -> bool:
    if home.name in listed:
        return _move(home, "loaded", "")
    try:
        if why := allow_lists.refused_on_node(home.source):
            raise AdapterRefused(why)
        _post(row, "/v1/load_lora_adapter", {"lora_name": home.name, "lora_path": home.source})
        if home.name not in _listed(row):
            raise AdapterRefused("the engine loaded it and does not list it")
    except AdapterRefused as error:
        return _failed(row, home, str(error))
    events.record(row, "adapter", f"holds the adapter {home.name}")
    return _move(home, "loaded", "")


def _failed(row: Instance, home: AdapterHome, why: str) -> bool:
    failures = home.failures + 1
    state = "failed" if failures >= FAILURES else "loading"
    AdapterHome.objects.filter(pk=home.pk, epoch=home.epoch).update(failures=failures, state=state, text=why[:TEXT])
    if state == "failed":
        events.record(row, "refused", f"the adapter {home.name} could not be loaded: {why[:TEXT]}")
    return False


def _unload(row: Instance, home: AdapterHome, listed: Mapping[str, str]) -> bool:
    if home.name in listed and home.source:
        try:
            _post(row, "/v1/unload_lora_adapter", {"lora_name": home.name})
        except AdapterRefused as error:
            return _move(home, "leaving", str(error))
    return bool(AdapterHome.objects.filter(pk=home.pk, epoch=home.epoch).delete()[0])


def _move(home: AdapterHome, state: str, text: str) -> bool:
    """Change the row by a conditional UPDATE, because the control worker may have decided otherwise in the meantime."""
    same = AdapterHome.objects.filter(pk=home.pk, epoch=home.epoch, state=home.state)
    return bool(same.update(state=state, text=text[:TEXT], since=timezone.now()))


def _listed(row: Instance) -> dict[str, str]:
    """Return the adapters that the engine lists (models with a parent), each with its root."""
    try:
        models = orjson.loads(_call(row, "/v1/models", None, ASK_S))["data"]
        return {str(model["id"]): str(model.get("root") or "") for model in models if model.get("parent")}
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        raise AdapterRefused(f"GET /v1/models: {error}") from None


def _post(row: Instance, path: str, body: Mapping[str, str]) -> None:
    _call(row, path, body, TIMEOUT_S)


def _call(row: Instance, path: str, body: Mapping[str, str] | None, timeout_s: float) -> bytes:
    """Return the body of the engine's answer. Raise AdapterRefused with the engine's text."""
    transport = EngineTransport(row.url, row.engine_key, certificates=row.tls)
    method = "GET" if body is None else "POST"
    try:
        answer = asyncio.run(ask_through(transport, method, row.url + path, timeout_s, LARGEST, json=body))
    except (TimeoutError, httpx.TimeoutException):
        raise AdapterRefused(f"no answer to {path} within {timeout_s:g} s") from None
    except httpx.HTTPError as error:
        raise AdapterRefused(f"{path}: {str(error) or type(error).__name__}") from None
    if answer.status == 200:
        return answer.body
    raise AdapterRefused(f"the engine answers {answer.status}: {_message(answer.body)}")


def _message(said: bytes) -> str:
    text = said[:TEXT].decode("utf-8", "replace")
    try:
        error = orjson.loads(said)
        return str(error.get("message") or error["error"]["message"])[:TEXT]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return text
