"""A name that moves to other pools obeys the rules of the policies on both sides, as a pool does."""

from collections.abc import Iterable

from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries.going_live import rules
from controlplane.traffic.policies import versions
from controlplane.traffic.policies.models import Policy
from fleet.models import Pool
from router.contract.models import Alias, Models


def ask_the_rules(before: Models, after: Models, actor: Actor, subject: str, emergency: str) -> None:
    """Check the rules for a changed name and raise the first refusal. Call it in the transaction of the change, so the
    rules cannot change meanwhile."""
    rules.check_emergency(actor, emergency)
    policies = policies_of(concerned(before, after))
    versions.lock(*(policy.name for policy in policies))
    for policy in policies:
        rules.check(rules.Change(rules.Way.REDIRECT, policy, actor, emergency=emergency))
        if emergency:
            rules.record_emergency(policy, subject, actor, emergency)


def concerned(before: Models, after: Models) -> set[str]:
    """The pools that a changed name leaves or joins, and the pools that lose its requests."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    sides = [alias for name in changed for alias in (before.get(name), after.get(name)) if alias is not None]
    own = Pool.objects.filter(ephemeral_owner="", removed=False).values_list("name", "model")
    taken = {pool for pool, model in own for name in changed if name in (pool, model)}
    return taken | _pools(sides)


def _pools(aliases: Iterable[Alias]) -> set[str]:
    return {target.pool for alias in aliases for target in alias.targets}


def policies_of(pools: Iterable[str]) -> list[Policy]:
    names = Pool.objects.filter(name__in=list(pools), ephemeral_owner="").values_list("policy", flat=True)
    return list(Policy.objects.filter(name__in=set(names)).order_by("name"))
