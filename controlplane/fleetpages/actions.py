"""What an operator does to the fleet, from a page, the API or the command line: the fleet's services, audited."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db import transaction

from controlplane.audit.services import Actor, record
from controlplane.policies.models import Policy
from fleet import document as documents
from fleet import services
from fleet.kinds.option import Problem, suggestion
from fleet.models import Instance
from fleet.services import Applied
from fleet.spec import FleetSpec, InvalidFleet, parse_fleet

VERBS: dict[str, Callable[[str, str, str], Instance]] = {
    "drain": services.drain,
    "undrain": services.undrain,
    "restart": services.restart,
    "stop": services.stop,
    "start": services.start,
}


def apply(
    document: Mapping[str, Any] | str,
    actor: Actor,
    *,
    reason: str = "",
    dry_run: bool = False,
    prune: bool = False,
    expected: str | None = None,
) -> Applied:
    """UnreadableDocument, InvalidFleet or FleetChanged; nothing is written then, nor in a dry run."""
    read = documents.load(document) if isinstance(document, str) else document
    _check_policies(parse_fleet(read))
    with transaction.atomic():
        before = services.export()
        applied = services.apply_fleet(read, actor.name, dry_run, prune, expected)
        if not dry_run and applied.drift:
            record(actor, "fleet.applied", "fleet", reason, before, services.export())
    return applied


def _check_policies(spec: FleetSpec) -> None:
    known = tuple(Policy.objects.values_list("name", flat=True))
    problems = [
        Problem(f"spec.pools[{index}].policy", pool.policy, f"no such policy{suggestion(pool.policy, known)}")
        for index, pool in enumerate(spec.pools)
        if known and pool.policy not in known
    ]
    if problems:
        raise InvalidFleet(problems)


def act(verb: str, instance_name: str, actor: Actor, reason: str) -> Instance:
    """Instance.DoesNotExist, or NotPossible that says what to do instead."""
    with transaction.atomic():
        before = _condition(Instance.objects.get(name=instance_name))
        instance = VERBS[verb](instance_name, actor.name, reason)
        record(actor, f"instance.{verb}", instance_name, reason, before, _condition(instance))
    return instance


def _condition(instance: Instance) -> dict[str, Any]:
    return {"desired": instance.desired, "state": instance.state, "epoch": instance.epoch}
