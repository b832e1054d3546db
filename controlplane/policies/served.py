"""Whether a policy can serve a pool, by the roles of its instances. Routers answer 503 where it cannot."""

from collections.abc import Mapping

from controlplane.policies import selectors
from controlplane.policies.errors import NoSuchPolicy, PolicyInvalid
from controlplane.policies.models import Policy
from fleet.kinds import KINDS
from fleet.kinds.wires import wires
from fleet.models import Pool
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import PoolSpec
from router.contract.json_value import JsonObject
from router.contract.problem import Problem
from router.policy.schema import document as documents
from router.policy.serves import why_not
from router.policy.types import InstanceState


def check(policy: Policy, document: JsonObject) -> None:
    """PolicyInvalid with every pool of the policy that it could not serve."""
    problems = tuple(
        Problem("strategy.name", document.get("strategy"), f"cannot serve the pool {pool.name}: {why}")
        for pool in selectors.pools_of(policy)
        if (why := why_not(documents.parse(document), _instances(pool_spec(pool))))
    )
    if problems:
        raise PolicyInvalid("the policy cannot serve its pools", problems)


def why_not_by(policy: str, pool: PoolSpec) -> str:
    """Why the live version of the policy, or the default without one, cannot serve the pool; empty when it can."""
    return why_not(documents.parse(_live(policy)), _instances(pool))


def why_not_now(pool: Pool) -> str:
    return why_not_by(pool.policy, pool_spec(pool))


def _live(policy: str) -> Mapping[str, object]:
    try:
        return selectors.live_version(selectors.policy(policy)).upgraded
    except NoSuchPolicy:
        return documents.default()


def _instances(pool: PoolSpec) -> list[InstanceState]:
    kind = KINDS.get(pool.kind)
    if kind is None:
        return []
    made = wires(kind, pool.engine, pool.name, pool.model, pool.replicas)
    return [
        InstanceState(name, role=wire.role, connector=wire.connector, pair=wire.kv.pair) for name, wire in made.items()
    ]
