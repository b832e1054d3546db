"""The kinds of engine that a pool can run: one file each, one line here."""

from fleet.kinds.external import EXTERNAL
from fleet.kinds.kind import Kind
from fleet.kinds.mooncake.mooncake_client import MOONCAKE_CLIENT
from fleet.kinds.mooncake.mooncake_master import MOONCAKE_MASTER
from fleet.kinds.neuron import NEURON
from fleet.kinds.sglang.sglang import SGLANG
from fleet.kinds.sim.sim import SIM
from fleet.kinds.sim.sim_store import SIM_STORE
from fleet.kinds.trtllm.trtllm import TRTLLM
from fleet.kinds.vllm.vllm import VLLM

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (SIM, SIM_STORE, VLLM, SGLANG, MOONCAKE_MASTER, MOONCAKE_CLIENT, NEURON, TRTLLM, EXTERNAL)
}
