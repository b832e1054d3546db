"""Three documents side by side: what two people did to the same policy. Pure."""

from collections.abc import Iterable
from typing import Any

from controlplane.audit.differences import differences, flatten
from controlplane.policies.errors import Dispute

STRATEGY = "strategy.name"


def disputes(base: dict[str, Any], theirs: dict[str, Any], mine: dict[str, Any]) -> tuple[Dispute, ...]:
    """Every field in which mine and theirs differ now, with what it was before. Two strategies are one dispute: the
    parameters of one make no sense with the other."""
    was, found = flatten(base), differences(theirs, mine)
    if STRATEGY in found:
        found = {path: pair for path, pair in found.items() if path == STRATEGY or not path.startswith("strategy.")}
    return tuple(Dispute(path, was.get(path), their, my) for path, (their, my) in found.items())


def merged(theirs: dict[str, Any], mine: dict[str, Any], take_mine: Iterable[str]) -> dict[str, Any]:
    """Theirs with the named fields taken from mine."""
    result = {key: dict(part) if isinstance(part, dict) else part for key, part in theirs.items()}
    for path in take_mine:
        section, _, key = path.partition(".")
        if path == STRATEGY:
            result[section] = dict(mine[section])
        else:
            result[section][key] = mine[section][key]
    return result


def suggestion(dispute: Dispute) -> str:
    """The side that changed the field when only one did, else nothing: a person has to choose."""
    if dispute.mine == dispute.base:
        return "theirs"
    return "mine" if dispute.theirs == dispute.base else ""
