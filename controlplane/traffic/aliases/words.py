"""Descriptions of names of the document Models, and of the differences between two documents. Pure."""

from dataclasses import dataclass

from router.contract.models import CONDITIONS, Alias, Models, Target


@dataclass(frozen=True, slots=True)
class ShownTarget:
    target: Target
    percent: float  # percentage of the sessions

    @property
    def share(self) -> str:
        return f"{self.percent:.3g} %"


def shares(alias: Alias) -> list[ShownTarget]:
    total = sum(target.weight for target in alias.split) or 1
    return [ShownTarget(target, 100 * target.weight / total) for target in alias.split]


def words(alias: Alias | None) -> str:
    """Describe an alias in one line: h200 90 %, h100 (chat-fp8) 10 %; falls back to spot on saturated."""
    if alias is None:
        return "–"
    several = len(alias.split) > 1
    said = ", ".join(f"{_target(one.target)}{f' {one.share}' if several else ''}" for one in shares(alias))
    if alias.fallback:
        only = conditions(alias)
        said += f"; falls back to {', then '.join(map(_target, alias.fallback))}{only and f' on {only}'}"
    return said


def conditions(alias: Alias) -> str:
    """Return the conditions of the alias's fallback, as shown on the form; empty if every condition counts."""
    return "" if alias.on == CONDITIONS else ", ".join(map(condition, alias.on))


def condition(name: str) -> str:
    return name.replace("_", " ")


def _target(target: Target) -> str:
    adapter = target.adapter
    if adapter is None:
        return target.words
    source = f" from {adapter.source}" if adapter.source else ""
    return f"{target.pool}, adapter {adapter.name}{source} on {adapter.replicas}"


@dataclass(frozen=True, slots=True)
class AliasChange:
    name: str
    old: str
    new: str


def changes(before: Models, after: Models) -> list[AliasChange]:
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [AliasChange(name, words(before.get(name)), words(after.get(name))) for name in names]
