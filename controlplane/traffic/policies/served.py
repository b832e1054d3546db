"""Whether a policy can serve a pool, by the roles of its instances. Routers answer 503 where it cannot."""

from collections.abc import Mapping, Sequence

from controlplane.traffic.policies import selectors
from controlplane.traffic.policies.errors import NoSuchPolicy, PolicyInvalid
from controlplane.traffic.policies.models import Policy
from fleet.kinds import KINDS
from fleet.kinds.kind import Kind, Launch
from fleet.kinds.options.option import build
from fleet.kinds.servers import SERVERS
from fleet.kinds.wire import Wire
from fleet.models import Instance, Pool
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import OBSERVE, PoolSpec
from router.contract.json_value import JsonObject
from router.contract.problem import Problem
from router.policy.schema import document as documents
from router.policy.serves import ANY, able_if
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, ParsedPolicy


def check(policy: Policy, document: JsonObject) -> None:
    """PolicyInvalid with every pool of the policy that it could not serve."""
    problems = tuple(
        Problem("strategy.name", document.get("strategy"), f"cannot serve the pool {pool.name}: {why}")
        for pool in selectors.pools_of(policy)
        if (why := _why_not(document, pool_spec(pool)))
    )
    if problems:
        raise PolicyInvalid("the policy cannot serve its pools", problems)


def why_not_by(policy: str, pool: PoolSpec) -> str:
    """Why the live version of the policy, or the default without one, cannot serve the pool; empty when it can."""
    return _why_not(_live(policy), pool)


def _why_not(document: Mapping[str, object], pool: PoolSpec) -> str:
    if pool.mode == OBSERVE:
        return ""  # its requests are not routed
    parsed = documents.parse(document)
    by_role = "" if documents.offloads(parsed) else by_roles(parsed, _instances(pool))  # builds every engine's options
    return by_role or _without_kv(parsed, pool)


OFFLOADING = tuple(name for name, strategy in STRATEGIES.items() if strategy.offloads)


def by_roles(policy: ParsedPolicy, instances: Sequence[InstanceState]) -> str:
    """Why the policy could send no request to these instances though another policy could; empty when it can."""
    offloads = documents.offloads(policy)
    if offloads or able_if(ANY, instances, offloads=False) or not able_if(ANY, instances, offloads=True):
        return ""
    prefilling = sum(one.role == "prefill" for one in instances)
    return (
        f"{prefilling} of its {len(instances)} instances only compute prompts and the others only decode: they serve "
        f"requests together, by offloads, and the strategy {policy['strategy.name']} with flow.heavy colocated never "
        f"offloads. Set flow.heavy to offload, or take one of {', '.join(OFFLOADING)}"
    )


def _without_kv(policy: ParsedPolicy, pool: PoolSpec) -> str:
    """Why a strategy that compares KV usage has nothing to compare."""
    kind, strategy = KINDS.get(pool.kind), STRATEGIES[policy["strategy.name"]]
    if kind is None or kind.launched or strategy.kv_optional or not strategy.reads_kv(policy):
        return ""
    rows = Instance.objects.filter(pool__name=pool.name).exclude(wire={})
    configured = build(kind.spec, pool.engine).server
    servers = {configured} if configured in SERVERS else {row.facts.server for row in rows} & SERVERS.keys()
    without = sorted(SERVERS[name].title for name in servers if not SERVERS[name].reports_kv)
    return f"it compares KV usage, which its engines ({', '.join(without)}) do not report" if without else ""


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
    if kind.has_source(build(kind.spec, pool.engine)):
        wires = {row.name: row.facts for row in Instance.objects.filter(pool__name=pool.name).exclude(wire={})}
    else:
        wires = _wires(kind, pool)
    return [
        InstanceState(name, role=wire.role, connector=wire.connector, pair=wire.kv.pair) for name, wire in wires.items()
    ]


def _wires(kind: Kind, pool: PoolSpec) -> dict[str, Wire]:
    """How routers will see the pool's instances before any has started; empty for a kind that serves no requests."""
    if not kind.serves:
        return {}
    spec, ports = build(kind.spec, pool.engine), dict.fromkeys(kind.ports, 0)
    launches = (
        Launch(f"{pool.name}-{ordinal}", pool.model, "127.0.0.1", ports, "python", ordinal)
        for ordinal in range(pool.replicas)
    )
    return {launch.instance: kind.wire(spec, launch) for launch in launches}
