"""Each KV connector has a single name everywhere."""

from fleet.kinds import KINDS
from fleet.kinds.kind import Launch
from fleet.kinds.options.option import options_of
from fleet.kinds.sim.sim import SimSpec
from fleet.kinds.transfer import MODES
from fleet.kinds.vllm.vllm_spec import VllmSpec
from fleet.simengine.kv import choose
from router import flows
from router.contract.connectors import CONNECTORS, NONE

LAUNCH = Launch("p-0", "m", "127.0.0.1", {"http": 1, "side": 2}, "python3")


def test_every_connector_has_a_flow_in_the_router_and_a_dialect_in_the_simulated_engine() -> None:
    assert set(flows.OFFLOADS) == set(choose.CONNECTORS) == set(CONNECTORS)


def test_a_kind_names_the_connectors_that_its_options_can_choose() -> None:
    transfers = (make(VllmSpec(), LAUNCH) for make in MODES.values())
    assert {made.routed_as for made in transfers if made.routed_as} == set(KINDS["vllm"].connectors)
    (kv,) = (option for option in options_of(SimSpec) if option.name == "kv")
    assert set(kv.choices) - {NONE} == set(KINDS["sim"].connectors)
