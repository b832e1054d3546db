"""Checks whether a policy can serve a pool, by the roles of its instances. Routers answer 503 if it cannot."""

from collections.abc import Mapping, Sequence

from controlplane.traffic.policies import selectors
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.models import Policy
from fleet.kinds import KINDS
from fleet.kinds.external import SOURCES
from fleet.kinds.servers import SERVERS
from fleet.models import Instance, Pool
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import OBSERVE, PoolSpec
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem
from router.policy.schema import document as documents
from router.policy.strategies import STRATEGIES
from router.policy.types import ParsedPolicy


def check(policy: Policy, document: JsonObject) -> None:
    """Raise InvalidInput with every pool of the policy that the document could not serve."""
    problems = tuple(
        Problem("strategy.name", document.get("strategy"), f"cannot serve the pool {pool.name}: {why}")
        for pool in selectors.pools_of(policy)
        if (why := _why_not(document, pool_spec(pool)))
    )
    if problems:
        raise InvalidInput("the policy cannot serve its pools", problems)


def why_not_by(policy: str, pool: PoolSpec) -> str:
    """Return why the policy's live version, or the default without one, cannot serve the pool; empty if it can."""
    return _why_not(_live(policy), pool)


def _why_not(document: Mapping[str, object], pool: PoolSpec) -> str:
    if pool.mode == OBSERVE:
        return ""  # routers decide none of the pool's requests
    parsed = documents.parse(document)
    return by_roles(parsed, _roles(pool)) or _without_kv(parsed, pool)


OFFLOADING = tuple(name for name, strategy in STRATEGIES.items() if strategy.offloads)


def by_roles(policy: ParsedPolicy, roles: Sequence[str]) -> str:
    """Return why the policy can send no request to instances of these roles although another policy could; empty if it
    can."""
    prefilling = roles.count("prefill")
    if documents.offloads(policy) or "both" in roles or not 0 < prefilling < len(roles):
        return ""
    return (
        f"{prefilling} of its {len(roles)} instances only compute prompts and the others only decode: they serve "
        f"requests together, by offloads, and the strategy {policy['strategy.name']} with flow.heavy colocated never "
        f"offloads. Set flow.heavy to offload, or take one of {', '.join(OFFLOADING)}"
    )


def _without_kv(policy: ParsedPolicy, pool: PoolSpec) -> str:
    """Return why a strategy that compares KV usage has none to compare."""
    kind, strategy = KINDS.get(pool.kind), STRATEGIES[policy["strategy.name"]]
    if kind is None or kind.launched or strategy.kv_optional or not strategy.reads_kv(policy):
        return ""
    rows = Instance.objects.filter(pool__name=pool.name).exclude(wire={})
    configured = pool.engine.get("server")
    servers = {str(configured)} if configured in SERVERS else {row.facts.server for row in rows} & SERVERS.keys()
    without = sorted(SERVERS[name].title for name in servers if not SERVERS[name].reports_kv)
    return f"it compares KV usage, which its engines ({', '.join(without)}) do not report" if without else ""


def why_not_now(pool: Pool) -> str:
    return why_not_by(pool.policy, pool_spec(pool))


def _live(policy: str) -> Mapping[str, object]:
    try:
        return selectors.live_version(selectors.policy(policy)).upgraded
    except NoSuchPolicy:
        return documents.default()


def _roles(pool: PoolSpec) -> list[str]:
    """Return the roles of the pool's instances, from its document or from its source's list; empty if all have the same
    role."""
    if prefills := min(_count(pool.engine.get("prefill_instances")), pool.replicas):
        return ["prefill"] * prefills + ["decode"] * (pool.replicas - prefills)
    if not any(pool.engine.get(name) for name in SOURCES):
        return []
    return [row.facts.role for row in Instance.objects.filter(pool__name=pool.name).exclude(wire={})]


def _count(given: object) -> int:
    return int(given) if isinstance(given, int | float) else 0
