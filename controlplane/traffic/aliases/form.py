"""The form for one name of the document Models: converts text fields to an entry of the document and back. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.traffic.aliases.words import condition
from router.contract.models import CONDITIONS, Alias
from router.contract.values.fields import typed_number
from router.contract.values.json_value import Json, JsonObject

Typed = tuple[str, str, str]  # pool, weight, model

ROWS = 2  # rows for targets, and for fallbacks, in an empty form
MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Row:
    at: int
    pool: str = ""
    weight: str = ""
    model: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NameForm:
    name: str
    was: str  # name before the edit; empty for a new name
    targets: tuple[Row, ...]
    fallbacks: tuple[Row, ...]
    on: tuple[str, ...]
    adapter: Mapping[str, str]
    errors: Mapping[str, str]

    @property
    def conditions(self) -> list[tuple[str, str, bool]]:
        return [(name, condition(name), name in self.on) for name in CONDITIONS]

    @property
    def others(self) -> list[str]:
        """Return errors that do not belong to a field."""
        return [text for path, text in self.errors.items() if path in ("", "on", "split", "fallback")]


def fits(alias: Alias) -> bool:
    """Return whether the form can show the entry; adapters of several targets can be edited only in the document."""
    return len(alias.split) == 1 or not any(target.adapter for target in alias.targets)


def of_alias(name: str, alias: Alias | None, more: int = 0) -> NameForm:
    if alias is None:
        return NameForm("", "", _rows((), ROWS + more), _rows((), 1), CONDITIONS, {"replicas": "1"}, {})
    several = len(alias.split) > 1
    targets = [(one.pool, str(one.weight) if several else "", one.model) for one in alias.split]
    spare = [(one.pool, "", one.model) for one in alias.fallback]
    adapter = alias.split[0].adapter
    typed = {"name": adapter.name, "source": adapter.source, "replicas": str(adapter.replicas)} if adapter else {}
    rows, spares = max(ROWS, len(targets) + 1) + more, len(spare) + 1
    return NameForm(name, name, _rows(targets, rows), _rows(spare, spares), alias.on, {"replicas": "1", **typed}, {})


def _rows(
    given: Sequence[Typed], count: int, errors: Mapping[str, str] | None = None, of: str = "split"
) -> tuple[Row, ...]:
    said, typed = errors or {}, [*given, *[("", "", "")] * max(0, count - len(given))][:MOST_ROWS]
    found = []
    for at, (pool, weight, model) in enumerate(typed):
        error = next((said[path] for path in _paths(of, at) if path in said), "")
        found.append(Row(at, pool, weight, model, error))
    return tuple(found)


def _paths(of: str, at: int) -> list[str]:
    own = [f"{of}[{at}]{part}" for part in ("", ".pool", ".weight", ".model")]
    return [*own, *(("pool", "model") if of == "split" and at == 0 else ())]


def entry_of(posted: Mapping[str, str]) -> JsonObject:
    """Return the entered text as an entry of the document, unchecked."""
    targets, spare = _typed(posted, "target"), _typed(posted, "fallback")
    made: JsonObject = dict(_target(targets[0])) if len(targets) == 1 else {}
    if len(targets) > 1:
        made["split"] = [{**_target(one), "weight": typed_number(one[1]) if one[1] else 1} for one in targets]
    if len(targets) <= 1 and posted.get("adapter_name", "").strip():
        made["adapter"] = _adapter(posted)
    if spare:
        made["fallback"] = [_target(one) for one in spare]
        on = [name for name in CONDITIONS if posted.get(f"on_{name}")]
        if tuple(on) != CONDITIONS:
            made["on"] = [*on]
    return made


def _typed(posted: Mapping[str, str], what: str) -> list[Typed]:
    def typed(part: str, at: int) -> str:
        return posted.get(f"{what}_{part}_{at}", "").strip()[:300]

    rows = [(typed("pool", at), typed("weight", at), typed("model", at)) for at in range(MOST_ROWS)]
    return [row for row in rows if row[0]]


def _target(typed: Typed) -> dict[str, Json]:
    pool, _, model = typed
    return {"pool": pool, "model": model} if model else {"pool": pool}


def _adapter(posted: Mapping[str, str]) -> JsonObject:
    source, replicas = (posted.get(f"adapter_{part}", "").strip() for part in ("source", "replicas"))
    made: JsonObject = {"name": posted["adapter_name"].strip()}
    if source:
        made["source"] = source
    if replicas:
        made["replicas"] = typed_number(replicas)
    return made


def as_typed(posted: Mapping[str, str], errors: Mapping[str, str], more: int = 0) -> NameForm:
    targets, spare = _typed(posted, "target"), _typed(posted, "fallback")
    adapter = {part: posted.get(f"adapter_{part}", "") for part in ("name", "source", "replicas")}
    on = tuple(name for name in CONDITIONS if posted.get(f"on_{name}"))
    return NameForm(
        posted.get("name", "").strip()[:300],
        posted.get("was", ""),
        _rows(targets, max(ROWS, len(targets) + 1) + more, errors),
        _rows(spare, len(spare) + 1, errors, "fallback"),
        on,
        adapter,
        errors,
    )
