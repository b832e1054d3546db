"""The control worker's step that polls the sources of pools: the listed engines become rows, on which the plan acts. A
source's list is kept in the database, so that it outlasts a source that does not answer and a change of the leading
worker.
"""

import datetime as dt
from collections.abc import Mapping

from django.db import transaction
from msgspec import to_builtins

from fleet import events
from fleet.counted import counted
from fleet.discovery.answer import Listing, Seen
from fleet.discovery.sources import Sources
from fleet.kinds import KINDS
from fleet.kinds.external import ExternalSpec
from fleet.kinds.listed import ListedEngine
from fleet.kinds.options.option import build
from fleet.models import Instance, InstanceSource, Pool
from fleet.tries import tries


def discover_step(sources: Sources, now: dt.datetime) -> list[str]:
    """Poll every source once. Return the names of pools whose engines have changed."""
    pools = {pool.name: pool for pool in Pool.objects.filter(kind="external", removed=False)}
    specs = {name: spec for name, pool in pools.items() if (spec := _spec(pool)) is not None}
    rows = {row.pool.name: row for row in InstanceSource.objects.select_related("pool")}
    for name in rows.keys() - specs.keys():
        rows.pop(name).delete()
    sources.keep_only(specs)
    changed = []
    with tries() as attempt:
        for name, spec in specs.items():
            with attempt(f"source of pool {name}"):
                row = rows.get(name) or InstanceSource(pool=pools[name], changed_at=now)
                if _note(row, sources.look(name, spec), now):
                    changed.append(name)
    return changed


def _spec(pool: Pool) -> ExternalSpec | None:
    """Return the pool's options; None if it has no source."""
    kind = KINDS[pool.kind]
    spec: ExternalSpec = build(kind.spec, pool.engine)
    return spec if kind.has_source(spec) else None


def _note(row: InstanceSource, seen: Seen, now: dt.datetime) -> bool:
    """Record the poll. Return True if the engines differ from the previous ones. Nothing is written unless something
    has changed."""
    if seen.trouble:
        if (row.away_since is None, row.trouble) != (False, seen.trouble):
            _note_away(row, seen, now)
        return False
    assert seen.answer is not None  # noqa: S101 - without trouble there is one
    engines, refused = to_builtins(list(seen.answer.engines)), list(seen.answer.refused)
    same = row.pk is not None and (row.engines, row.refused) == (engines, refused)
    if same and row.away_since is None:
        return False
    with transaction.atomic():
        if row.away_since is not None:
            lasted = max(0.0, (now - row.away_since).total_seconds())
            events.record_pool(row.pool, "source back", "its source answers again", seconds=lasted)
        if not same:
            _note_engines(row, seen.answer)
            row.engines, row.refused, row.changed_at = engines, refused, now
        row.away_since, row.trouble = None, ""
        row.save()
    return not same


def _note_away(row: InstanceSource, seen: Seen, now: dt.datetime) -> None:
    with transaction.atomic():
        if row.away_since is None:
            row.away_since = now if seen.answered_at is None else dt.datetime.fromtimestamp(seen.answered_at, dt.UTC)
            events.record_pool(row.pool, "source away", f"its source does not answer: {seen.trouble}")
        row.trouble = seen.trouble
        row.save()


def _note_engines(row: InstanceSource, answer: Listing) -> None:
    before, after = row.listed, {one.key: one for one in answer.engines}
    for instance in Instance.objects.filter(pool=row.pool).exclude(listed={}):
        found = after.get(instance.listed["key"])
        if found is not None and to_builtins(found) != instance.listed:
            _take(instance, found)
    text = _changes(before, after)
    if text:
        events.record_pool(row.pool, "source", text)


def _changes(before: Mapping[str, ListedEngine], after: Mapping[str, ListedEngine]) -> str:
    new = [after[key].name for key in after.keys() - before.keys()]
    gone = [before[key].name for key in before.keys() - after.keys()]
    parts = [
        f"{verb} {counted(len(names), 'engine')}: {', '.join(sorted(names)[:8])}{', …' if len(names) > 8 else ''}"
        for verb, names in (("its source lists", new), ("no longer lists", gone))
        if names
    ]
    return "; ".join(parts)


def _take(instance: Instance, found: ListedEngine) -> None:
    """Adopt the listed values. A new address, role or container start begins a new epoch, and routers forget the
    instance's cache.
    """
    before = instance.listing
    fields: dict[str, object] = {"listed": to_builtins(found)}
    if before is not None and (before.url, before.role) != (found.url, found.role):
        fields["restart_asked"] = "its source reports another address or role"
    elif before is not None and before.starts != found.starts:
        fields["restart_asked"] = "its container was started again"
    Instance.objects.filter(pk=instance.pk).update(**fields)
