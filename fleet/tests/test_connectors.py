"""KV connectors are named once."""

from fleet.simengine.kv import choose
from router import flows
from router.contract.connectors import CONNECTORS, MOONCAKE_STORE
from router.policy.strategies import mooncake_conductor


def test_every_connector_has_a_flow_in_the_router_and_a_dialect_in_the_simulated_engine() -> None:
    assert set(flows.OFFLOADS) == set(choose.CONNECTORS) == set(CONNECTORS)


def test_the_policy_which_imports_nothing_names_the_store_alike() -> None:
    assert mooncake_conductor.STORE == MOONCAKE_STORE
