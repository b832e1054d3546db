"""Checks the document Models: its pools must exist and serve, and their engines must be able to load its adapters."""

from collections.abc import Iterator, Mapping

from controlplane.traffic.aliases import selectors
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.models import Pool
from fleet.spec import allow_lists
from fleet.spec.fleet_spec import SERVE
from router.contract import models
from router.contract.models import Adapter, Models, Target
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem


def checked(document: object) -> JsonObject:
    """Check only the document's structure, which suffices for drafts."""
    return models.dump(models.parse(document))


def check(document: object, live: Models) -> Models:
    """Check a document before its publication. Raise InvalidInput with every problem."""
    found = models.parse(document)
    pools = {pool.name: pool for pool in Pool.objects.filter(ephemeral_owner="", removed=False)}
    errors = [error for path, _, target in models.placed(found) for error in _of_target(path, target, pools)]
    errors += _reloaded(found, live)
    if errors:
        raise InvalidInput("the document Models cannot be served", tuple(errors))
    return found


def served_by(gone: Mapping[str, str]) -> list[Problem]:
    """Return why these pools (name: place in the fleet document) cannot stop serving: live names route requests to
    them.
    """
    live = selectors.live()
    names: dict[str, dict[str, None]] = {}
    for _, name, target in models.placed(live.aliases):
        if target.pool in gone:
            names.setdefault(target.pool, {})[name] = None
    return [
        Problem(
            gone[pool],
            pool,
            f"the pool {pool} serves {', '.join(names[pool])} ({live.label}): publish Models without it first",
        )
        for pool in sorted(names)
    ]


def problems(document: object, live: Models) -> tuple[Problem, ...]:
    try:
        check(document, live)
    except InvalidInput as error:
        return error.problems
    return ()


def _of_target(path: str, target: Target, pools: dict[str, Pool]) -> Iterator[Problem]:
    pool = pools.get(target.pool)
    serving = sorted(name for name, one in pools.items() if one.kind in KINDS and KINDS[one.kind].serves)
    if pool is None or pool.name not in serving:
        what = "there is no such pool" if pool is None else "its instances serve no requests"
        yield Problem(f"{path}.pool", target.pool, what, ", ".join(serving) or "none: declare a pool first")
    elif pool.mode != SERVE:
        yield Problem(f"{path}.pool", target.pool, "it is observed only: no requests are sent to it", "a served pool")
    elif target.adapter is not None and target.adapter.source:
        yield from _of_adapter(f"{path}.adapter", target.adapter, pool)


def _of_adapter(path: str, adapter: Adapter, pool: Pool) -> Iterator[Problem]:
    kind = KINDS[pool.kind]
    slots = kind.adapter_slots(build(kind.spec, pool.engine))
    if not slots:
        why = f"the pool {pool.name} loads no adapters"
        yield Problem(f"{path}.name", adapter.name, why, "a pool whose engine has enable_lora")
    elif adapter.replicas > pool.replicas:
        yield Problem(f"{path}.replicas", adapter.replicas, "more than the pool has instances", f"1 to {pool.replicas}")
    yield from allow_lists.source_refusals(adapter.source, f"{path}.source")


def _reloaded(found: Models, live: Models) -> Iterator[Problem]:
    """Refuse a new source under an old name, because engines cache an adapter's blocks by its name."""
    before = models.adapters_of(live)
    for path, _, target in models.placed(found):
        old = before.get((target.pool, target.adapter.name)) if target.adapter is not None else None
        if old is not None and target.adapter is not None and old.source not in ("", target.adapter.source):
            why = f"the adapter {old.name} was loaded from {old.source}: engines would keep what they cached with it"
            yield Problem(f"{path}.adapter.source", target.adapter.source, why, "a new name for a new source")
