"""The document *Models*: the names that clients request, and the pools that serve them. Pure.

    {"schema": 1, "models": {NAME: {"pool", "model", "adapter"} or {"split": [{"pool", "weight", …}, …]},
                                   "fallback": [{"pool", …}, …], "on": [CONDITION, …]}}

`parse` reports every problem at once, `dump` writes the canonical form, so `dump(parse(x))` is stable.

InvalidInput   `.problems` holds every Problem
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem

SCHEMA = 1
Condition = Literal["no_instance_ready", "saturated", "upstream_failed"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)

MOST_ALIASES = 1000
MOST_TARGETS = 20
MOST_WEIGHT = 10_000
MOST_REPLICAS = 512
LONGEST_NAME = 200  # characters
LONGEST_SOURCE = 1000
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,99}")
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of the pool's model."""

    name: str  # name listed by the engines
    source: str = ""  # path or name for the engine to load; empty if Weir does not load it
    replicas: int = 1  # number of instances that hold it


@dataclass(frozen=True, slots=True)
class Target:
    pool: str
    weight: int = 1  # weight among the targets of a split
    model: str = ""  # name at the engines; empty for the pool's model
    adapter: Adapter | None = None

    @property
    def words(self) -> str:
        name = self.adapter.name if self.adapter is not None else self.model
        return f"{self.pool} ({name})" if name else self.pool


@dataclass(frozen=True, slots=True)
class Alias:
    split: tuple[Target, ...]  # at least one
    fallback: tuple[Target, ...] = ()  # tried in order, before the first byte
    on: tuple[Condition, ...] = CONDITIONS  # conditions on which the next target is tried

    @property
    def targets(self) -> tuple[Target, ...]:
        return (*self.split, *self.fallback)


Models = Mapping[str, Alias]


def parse(document: object) -> Models:
    """Parse the document. Raise InvalidInput with every problem."""
    reader = _Reader()
    found = reader.document(document)
    if not reader.errors:
        reader.errors += _disagreeing(found)
    if reader.errors:
        said = "; ".join(map(str, reader.errors[:3]))
        raise InvalidInput(f"the document Models is not valid: {said}", reader.errors)
    return found


def dump(models: Models) -> JsonObject:
    return {"schema": SCHEMA, "models": {name: _alias(models[name]) for name in sorted(models)}}


def empty() -> JsonObject:
    return dump({})


def sha256(document: JsonObject) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def placed(models: Models) -> Iterator[tuple[str, str, Target]]:
    """Return (path, alias, target) of every target."""
    for name, alias in models.items():
        where = f"models.{name}"
        if len(alias.split) == 1:
            yield where, name, alias.split[0]
        else:
            yield from ((f"{where}.split[{at}]", name, target) for at, target in enumerate(alias.split))
        yield from ((f"{where}.fallback[{at}]", name, target) for at, target in enumerate(alias.fallback))


def adapters_of(models: Models) -> dict[tuple[str, str], Adapter]:
    """Return the adapters by pool and name."""
    return {(one.pool, one.adapter.name): one.adapter for _, _, one in placed(models) if one.adapter is not None}


def _disagreeing(models: Models) -> Iterator[Problem]:
    """Report adapters that are declared in several places with different settings, or that share a model's name."""
    known: dict[tuple[str, str], Adapter] = {}
    for path, _, target in placed(models):
        adapter = target.adapter
        if adapter is not None and known.setdefault((target.pool, adapter.name), adapter) != adapter:
            why = f"the adapter {adapter.name} has another source or other replicas elsewhere in this document"
            yield Problem(f"{path}.adapter", adapter.name, why)


def _alias(alias: Alias) -> JsonObject:
    if len(alias.split) == 1:
        made = _target(alias.split[0])
    else:
        made = {"split": [{**_target(one), "weight": one.weight} for one in alias.split]}
    if alias.fallback:
        made["fallback"] = [_target(one) for one in alias.fallback]
        if alias.on != CONDITIONS:
            made["on"] = list(alias.on)
    return made


def _target(target: Target) -> JsonObject:
    made: JsonObject = {"pool": target.pool}
    if target.model:
        made["model"] = target.model
    if target.adapter is not None:
        adapter = target.adapter
        source: JsonObject = {"source": adapter.source} if adapter.source else {}
        made["adapter"] = {"name": adapter.name, **source, "replicas": adapter.replicas}
    return made


class _Reader:
    """A reader whose methods return the valid parts of their input and note the problems."""

    def __init__(self) -> None:
        self.errors: list[Problem] = []

    def document(self, given: object) -> dict[str, Alias]:
        document = self._map("", given, ("schema", "models"))
        if document is None:
            return {}
        if document.get("schema", SCHEMA) != SCHEMA or isinstance(document.get("schema"), bool):
            self._refuse("schema", document["schema"], "unknown schema", str(SCHEMA))
        models = document.get("models")
        if not isinstance(models, dict):
            self._refuse("models", models, "not a map of names", "NAME: {pool: …} or NAME: {split: […]}")
            return {}
        if len(models) > MOST_ALIASES:
            self._refuse("models", len(models), "too many names", f"{MOST_ALIASES:,} at most")
            return {}
        return {str(name): self._of_name(name, alias) for name, alias in models.items()}

    def _of_name(self, name: object, given: object) -> Alias:
        path = f"models.{str(name)[:LONGEST_NAME]}"
        self._name(path, name)
        alias = self._map(path, given, ("pool", "model", "adapter", "split", "fallback", "on"))
        if alias is None:
            return Alias(())
        return Alias(self._split(path, alias), self._fallback(path, alias), self._on(path, alias))

    def _name(self, path: str, name: object) -> None:
        fits = isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()
        if not fits or str(name).startswith(("/", ".", "~")):
            allowed = f"1 to {LONGEST_NAME} printable characters that do not begin like a path"
            self._refuse(path, name, "not the name of a model", allowed)

    def _split(self, path: str, alias: dict[str, Any]) -> tuple[Target, ...]:
        if "split" not in alias:
            own = {key: alias[key] for key in ("pool", "model", "adapter") if key in alias}
            return (self._target(path, own),)
        for key in ("pool", "model", "adapter"):
            if key in alias:
                self._refuse(f"{path}.{key}", alias[key], "beside a split", "either split, or pool, model and adapter")
        targets = self._targets(f"{path}.split", alias["split"], least=1, weighted=True)
        if targets and not any(target.weight for target in targets):
            self._refuse(f"{path}.split", [0] * len(targets), "no target has a weight", "one above 0 at least")
        return targets

    def _fallback(self, path: str, alias: dict[str, Any]) -> tuple[Target, ...]:
        if "fallback" not in alias:
            return ()
        return self._targets(f"{path}.fallback", alias["fallback"], least=0, weighted=False)

    def _on(self, path: str, alias: dict[str, Any]) -> tuple[Condition, ...]:
        given = alias.get("on", list(CONDITIONS))
        if not isinstance(given, list) or not given or any(one not in CONDITIONS for one in given):
            self._refuse(f"{path}.on", given, "not a list of conditions", ", ".join(CONDITIONS))
            return CONDITIONS
        if "on" in alias and not alias.get("fallback"):
            self._refuse(f"{path}.on", given, "says when to fall back, and there is no fallback", "with fallback only")
        return tuple(one for one in CONDITIONS if one in given)

    def _targets(self, path: str, given: object, *, least: int, weighted: bool) -> tuple[Target, ...]:
        if not isinstance(given, list) or not least <= len(given) <= MOST_TARGETS:
            self._refuse(path, given, "not a list of targets", f"{least} to {MOST_TARGETS} maps with a pool")
            return ()
        targets = tuple(self._target(f"{path}[{at}]", one, weighted=weighted) for at, one in enumerate(given))
        seen: set[tuple[str, str, Adapter | None]] = set()
        for at, target in enumerate(targets):
            same = (target.pool, target.model, target.adapter)
            if target.pool and same in seen:
                self._refuse(f"{path}[{at}].pool", target.pool, "there twice", "each target once")
            seen.add(same)
        return targets

    def _target(self, path: str, given: object, *, weighted: bool = False) -> Target:
        target = self._map(path, given, ("pool", "model", "adapter", *(("weight",) if weighted else ())))
        if target is None:
            return Target("")
        pool = target.get("pool")
        if not isinstance(pool, str) or not _POOL.fullmatch(pool):
            self._refuse(f"{path}.pool", pool, "not the name of a pool", "1 to 63 letters, digits and . _ -")
            pool = ""
        model = target.get("model", "")
        if not isinstance(model, str) or len(model) > LONGEST_NAME or not model.isprintable():
            self._refuse(f"{path}.model", model, "not the name of a model", f"up to {LONGEST_NAME} characters")
            model = ""
        weight = self._whole(f"{path}.weight", target.get("weight", 1), 0, MOST_WEIGHT)
        adapter = self._adapter(f"{path}.adapter", target["adapter"]) if target.get("adapter") is not None else None
        if adapter is not None and model:
            self._refuse(f"{path}.model", model, "beside an adapter, whose name is the model", "leave it out")
        return Target(pool, weight, model, adapter)

    def _adapter(self, path: str, given: object) -> Adapter:
        adapter = self._map(path, given, ("name", "source", "replicas"))
        if adapter is None:
            return Adapter("")
        name, source = adapter.get("name"), adapter.get("source", "")
        if not isinstance(name, str) or not ADAPTER_NAME.fullmatch(name):
            self._refuse(f"{path}.name", name, "not the name of an adapter", "1 to 100 letters, digits and . _ @ : -")
            name = ""
        if not isinstance(source, str) or len(source) > LONGEST_SOURCE or not source.isprintable() or "://" in source:
            self._refuse(f"{path}.source", source, "not a source", "a folder, or a name that the engine can load")
            source = ""
        return Adapter(name, source, self._whole(f"{path}.replicas", adapter.get("replicas", 1), 1, MOST_REPLICAS))

    def _whole(self, path: str, given: object, least: int, most: int) -> int:
        if isinstance(given, int) and not isinstance(given, bool) and least <= given <= most:
            return given
        self._refuse(path, given, "not a whole number within its limits", f"{least} to {most:,}")
        return max(least, 1)

    def _map(self, path: str, given: object, allowed: tuple[str, ...]) -> dict[str, Any] | None:
        if not isinstance(given, dict):
            self._refuse(path, given, "not a map", ", ".join(allowed))
            return None
        for key in given:
            if key not in allowed:
                self._refuse(f"{path}.{key}".lstrip("."), given[key], "unknown key", ", ".join(allowed))
        return given

    def _refuse(self, path: str, value: object, message: str, allowed: str) -> None:
        self.errors.append(Problem(path, value, message, allowed))
