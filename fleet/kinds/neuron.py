"""The `neuron` kind: vLLM on AWS Trainium and Inferentia, colocated or as prefill and decode servers. It uses NxD
Inference with the NeuronConnector, or the plugin vLLM Neuron over NIXL, whose decoder pulls the KV after the prefill
and generates the first token. Only the command lines are tested, because running them requires Neuron devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.kv_size import sizes_of
from fleet.kinds.options.common_options import (
    STARTED_WITH_KEY,
    arguments_option,
    engine_key_option,
    environment_option,
    image_option,
    model_option,
    prefill_instances_option,
    python_option,
)
from fleet.kinds.options.option import option
from fleet.kinds.serving import (
    BOTH,
    FIRST_ADDED_PREFILL,
    PREFILL,
    ROLES,
    compact,
    first_device,
    fitting,
    flags,
    own_role,
    pair_of,
    visible,
    weights_of,
)
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.wire import KvFacts, KvWire
from router.contract import connectors
from router.contract.metrics.engine_metrics import VLLM_SCRAPE
from router.contract.net import engine_key


@dataclass(frozen=True)
class NeuronSpec:
    model: str | None = model_option()
    python: str = python_option("the Neuron environment")
    plugin: bool = option(
        False,
        "vLLM Neuron",
        "The plugin vLLM Neuron (Neuron 2.31 and later) instead of NxD Inference: servers move KV over NIXL, and "
        "any decoder takes any prompt.",
    )
    cores: tuple[str, ...] = option(
        (),
        "NeuronCores",
        "Ids, assigned to the instances in order, as many as each spans, from the end to prefill instances that "
        "the autoscaler adds; empty: all are visible.",
    )
    tensor_parallel: int = option(8, "Tensor parallel", "NeuronCores per instance.", unit="cores", range=(1, 128))
    prefill_tensor_parallel: int | None = option(
        None,
        "Tensor parallel of prefill",
        "NeuronCores per prefill instance; left out: tensor_parallel.",
        unit="cores",
        range=(1, 128),
    )
    max_model_len: int = option(
        8192, "Longest request", "Graphs are compiled for this length.", unit="tokens", range=(16, 1_048_576)
    )
    max_num_seqs: int = option(
        4, "Sequences", "Batch size of the decode graph; requests in transfer count.", range=(1, 1024)
    )
    prefill_max_num_seqs: int | None = option(
        None,
        "Sequences of prefill",
        "Batch size of a prefill instance: one is computed, the others are in transfer; left out: max_num_seqs.",
        range=(1, 1024),
    )
    role: str = option(BOTH, "Role", "Role of every instance.", choices=ROLES)
    prefill_instances: int = prefill_instances_option()
    etcd: str | None = option(
        None,
        "etcd",
        "host:port where workers register (xPyD); left out: fixed pairs (1P1D), each of the prefill_instances "
        "with the decoder of the same place among the decoders.",
        kind="text",
    )
    peer: str | None = option(
        None,
        "Prefill host",
        "Without etcd: the prefill server's address, for the decode server; left out: that of its pair.",
        kind="text",
    )
    buffer_bytes: float = option(2e11, "Transfer buffer", "For KV in transfer.", unit="bytes", range=(1e6, 1e13))
    overrides: str = option(
        "{}", "Neuron configuration", "JSON for --override-neuron-config; with plugin for --additional-config."
    )
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()
    engine_key: str | None = engine_key_option(STARTED_WITH_KEY)


def command(spec: NeuronSpec, launch: Launch) -> list[str]:
    model = weights_of(spec, launch)
    if spec.plugin:
        server, own = ("cli.main", "serve", model), {"additional-config": spec.overrides}
    else:
        server, own = (
            ("openai.api_server", "--model", model),
            {
                "device": "neuron",
                "override-neuron-config": spec.overrides,
            },
        )
    given = {
        "host": launch.host,
        "port": launch.ports["http"],
        "served-model-name": launch.model,
        "tensor-parallel-size": cores_of(spec, own_role(spec, launch)),
        "max-model-len": spec.max_model_len,
        "max-num-seqs": _sequences(spec, launch),
        **own,
    }
    argv = [launch.path(spec.python), "-m", f"vllm.entrypoints.{server[0]}", *server[1:], *flags(given)]
    if own_role(spec, launch) != BOTH:
        argv += ["--kv-transfer-config", compact(_transfer(spec, launch))]
    return [*argv, *spec.arguments]


def _sequences(spec: NeuronSpec, launch: Launch) -> int:
    prefills = own_role(spec, launch) == PREFILL
    return (prefills and spec.prefill_max_num_seqs) or spec.max_num_seqs


def cores_of(spec: NeuronSpec, role: str) -> int:
    return (role == PREFILL and spec.prefill_tensor_parallel) or spec.tensor_parallel


def _first_core(spec: NeuronSpec, ordinal: int) -> int:
    if ordinal >= FIRST_ADDED_PREFILL:
        return len(spec.cores) - (ordinal - FIRST_ADDED_PREFILL + 1) * cores_of(spec, PREFILL)
    return first_device(spec, ordinal, cores_of)


def pair(spec: NeuronSpec, ordinal: int) -> int | None:
    """Return the prefill instance of a decoder if there is no etcd: the one with the same index on its side."""
    is_paired = spec.prefill_instances and not spec.etcd and not spec.plugin
    return pair_of(spec.prefill_instances, ordinal) if is_paired else None


def _transfer(spec: NeuronSpec, launch: Launch) -> dict[str, object]:
    prefills = own_role(spec, launch) == PREFILL
    if spec.plugin:
        # The plugin registers device memory with NIXL under CUDA's name.
        return {
            "kv_connector": "NeuronNixlConnector",
            "kv_role": "kv_producer" if prefills else "kv_consumer",
            "kv_buffer_device": "cuda",
            "kv_connector_extra_config": {"backends": ["LIBFABRIC"]},
        }
    config: dict[str, object] = {
        "kv_connector": "NeuronConnector",
        "kv_role": "kv_producer" if prefills else "kv_consumer",
        "kv_buffer_size": spec.buffer_bytes,
        "kv_rank": 0 if prefills else 1,
        "kv_parallel_size": 2,
        "neuron_core_offset": _first_core(spec, launch.ordinal) if not spec.cores else 0,
    }
    return config | _meeting(spec, launch)


def _meeting(spec: NeuronSpec, launch: Launch) -> dict[str, str | float]:
    """Return where the two servers of a pair meet: at a port of the prefill server. With an etcd, each server uses its
    own port.
    """
    if spec.etcd:
        return {"etcd": spec.etcd, "kv_port": launch.ports["side"]}
    other = pair(spec, launch.ordinal)
    if other is None:
        return {"kv_ip": spec.peer or launch.host, "kv_port": launch.ports["side"]}
    name = launch.sibling(other)
    host, _, port = launch.peers.get(name, f"<address of {name}>:<its side port>").rpartition(":")
    return {"kv_ip": spec.peer or host, "kv_port": int(port) if port.isdigit() else port}


def environment(spec: NeuronSpec, launch: Launch) -> dict[str, str]:
    first = _first_core(spec, launch.ordinal)
    cores = spec.cores[first : first + cores_of(spec, own_role(spec, launch))]
    if spec.plugin:
        return _of_plugin(spec, launch, cores) | dict(spec.environment or {})
    found = {
        "PYTHONPATH": "",
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        **visible(cores, "NEURON_RT_VISIBLE_CORES"),
    }
    if own_role(spec, launch) != BOTH:
        found |= {"NEURON_RT_ASYNC_SENDRECV_COMPLETION": "1", "NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT": "45645"}
    return found | dict(spec.environment or {})


def _of_plugin(spec: NeuronSpec, launch: Launch, cores: tuple[str, ...]) -> dict[str, str]:
    found = {"PYTHONPATH": "", **visible(cores, "NEURON_VISIBLE_DEVICES")}
    if own_role(spec, launch) == BOTH:
        return found
    return found | {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": launch.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(launch.ports["side"]),
        "FI_EFA_ENABLE_SHM_TRANSFER": "0",  # servers of one host would transfer wrong KV through shared memory
    }


def refuse(spec: NeuronSpec) -> dict[str, str]:
    """Return the conflicting options. The plugin's servers meet through NIXL's side channels."""
    return {
        name: "belongs to NxD Inference: leave it out with plugin"
        for name in ("etcd", "peer")
        if spec.plugin and getattr(spec, name)
    }


def wire(spec: NeuronSpec, launch: Launch) -> KvWire:
    if own_role(spec, launch) == BOTH:
        return KvWire()
    if spec.plugin:
        return KvWire(own_role(spec, launch), connectors.NIXL)
    other = pair(spec, launch.ordinal)
    kv = KvFacts(etcd=spec.etcd or "", pair="" if other is None else launch.sibling(other))
    return KvWire(own_role(spec, launch), connectors.NEURON, kv)


def max_replicas(spec: NeuronSpec) -> int | None:
    """Return the largest number that the cores and the pairs allow."""
    limits = [2 * spec.prefill_instances] if pair(spec, spec.prefill_instances) is not None else []
    if spec.cores:
        limits.append(fitting(spec, len(spec.cores), cores_of))
    return min(limits, default=None)


def fixed_sides(spec: NeuronSpec, prefills: int, decodes: int) -> str:
    """Return why the sides cannot grow to these sizes: they grow towards each other in the list of cores, and must not
    meet.
    """
    needed = max(prefills, spec.prefill_instances) * cores_of(spec, PREFILL) + decodes * spec.tensor_parallel
    if needed <= len(spec.cores):
        return ""
    most = f"{prefills} prefill and {decodes} decode instances, the most that its limits allow,"
    return f"needs {needed} entries in engine.cores for {most} and has {len(spec.cores)}"


def requires(spec: NeuronSpec, launch: Launch) -> tuple[Requirement, ...]:
    python = launch.path(spec.python)
    return (
        Requirement("program", python, advice="set engine.python to the interpreter of the Neuron environment"),
        Requirement("module", "vllm", python, advice="use the Neuron image, or install its vLLM"),
        Requirement("module", "vllm_neuron", python, advice="install vLLM Neuron")
        if spec.plugin
        else Requirement("module", "neuronx_distributed_inference", python, advice="install NxD Inference"),
        Requirement("folder", "/dev/neuron0", advice="this host has no Neuron device"),
    )


NEURON = Kind(
    name="neuron",
    title="vLLM on Neuron",
    spec=NeuronSpec,
    ports=("http", "side"),
    command=command,
    environment=environment,
    later_options=("engine_key", "plugin"),
    refuse=refuse,
    key_variable=engine_key.VARIABLE,
    scrape=VLLM_SCRAPE,
    load_timeout_s=7200,  # the first start compiles the graphs
    drain_timeout_s=600,
    grace_s=15,
    wire=wire,
    numbered=lambda spec: True,  # an instance uses the cores after those of the previous one
    max_replicas=max_replicas,
    pair=pair,
    pair_port="side",
    fixed_sides=fixed_sides,
    requires=requires,
    device="aws.amazon.com/neuroncore",
    devices=cores_of,
    whole_prompts=True,
    twin_kv=lambda spec, launch: TwinKv(sizes_of(launch.path(spec.model or launch.model))),
    connectors=(connectors.NEURON, connectors.NIXL),
)
