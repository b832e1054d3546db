"""The `neuron` kind: vLLM on AWS Trainium and Inferentia (NxD Inference), colocated or as prefill and decode servers.

Only its command line has been tested: it takes an instance with Neuron devices to run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.kinds.image import image_option
from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.option import option
from fleet.kinds.serving import BOTH, PREFILL, ROLES, compact, flags, role_of, visible
from router.contract import connectors
from router.contract.engine_metrics import VLLM_SCRAPE


@dataclass(frozen=True)
class NeuronSpec:
    model: str | None = option(
        None, title="Model", kind="text", help="Folder or hub name of the weights; left out: the pool's model."
    )
    python: str = option(
        "python3", title="Python", kind="text", help="Interpreter of the Neuron environment; ./… is from Weir's folder."
    )
    cores: tuple[str, ...] = option(
        (),
        title="NeuronCores",
        kind="list",
        help="Ids dealt out to the instances in order, tensor_parallel to each; empty: all are visible.",
    )
    tensor_parallel: int = option(
        8, title="Tensor parallel", unit="cores", minimum=1, maximum=128, help="NeuronCores that one instance spans."
    )
    max_model_len: int = option(
        8192, title="Longest request", unit="tokens", minimum=16, maximum=1_048_576, help="Graphs are compiled for it."
    )
    max_num_seqs: int = option(
        4, title="Sequences", minimum=1, maximum=1024, help="Batch of the decode graph; transferring counts as running."
    )
    role: str = option(BOTH, title="Role", kind="text", choices=ROLES, help="What the instances are there for.")
    prefill_instances: int = option(
        0,
        title="Prefill instances",
        minimum=0,
        maximum=512,
        help="The first so many instances prefill and the others decode; 0: all have the pool's role.",
    )
    etcd: str | None = option(
        None,
        title="etcd",
        kind="text",
        help="host:port where workers register; left out: one prefill and one decode server that know each other.",
    )
    peer: str | None = option(
        None,
        title="Prefill host",
        kind="text",
        help="Without etcd: the address of the prefill server, for the decode one.",
    )
    buffer_bytes: float = option(
        2e11, title="Transfer buffer", kind="float", unit="bytes", minimum=1e6, maximum=1e13, help="For KV on its way."
    )
    overrides: str = option("{}", title="Neuron configuration", kind="text", help="JSON for --override-neuron-config.")
    arguments: tuple[str, ...] = option(
        (), title="Extra arguments", kind="list", help="Appended to the command line as they are, one word each."
    )
    environment: Mapping[str, str] | None = option(
        None, title="Environment", kind="map", help="Variables of the process, over those that Weir sets."
    )
    image: str | None = image_option()


def role(spec: NeuronSpec, launch: Launch) -> str:
    return role_of(spec.role, spec.prefill_instances, launch.ordinal)


def command(spec: NeuronSpec, launch: Launch) -> list[str]:
    given = {
        "host": launch.host,
        "port": launch.ports["http"],
        "model": launch.path(spec.model) if spec.model else launch.model,
        "served-model-name": launch.model,
        "tensor-parallel-size": spec.tensor_parallel,
        "max-model-len": spec.max_model_len,
        "max-num-seqs": spec.max_num_seqs,
        "device": "neuron",
        "override-neuron-config": spec.overrides,
    }
    argv = [launch.path(spec.python), "-m", "vllm.entrypoints.openai.api_server", *flags(given)]
    if role(spec, launch) != BOTH:
        argv += ["--kv-transfer-config", compact(_transfer(spec, launch))]
    return [*argv, *spec.arguments]


def _transfer(spec: NeuronSpec, launch: Launch) -> dict[str, Any]:
    prefills = role(spec, launch) == PREFILL
    config: dict[str, Any] = {
        "kv_connector": "NeuronConnector",
        "kv_role": "kv_producer" if prefills else "kv_consumer",
        "kv_buffer_size": spec.buffer_bytes,
        "kv_rank": 0 if prefills else 1,
        "kv_parallel_size": 2,
        "neuron_core_offset": spec.tensor_parallel * launch.ordinal if not spec.cores else 0,
    }
    where = {"etcd": spec.etcd} if spec.etcd else {"kv_ip": spec.peer or launch.host}
    return config | where | {"kv_port": launch.ports["side"]}


def environment(spec: NeuronSpec, launch: Launch) -> dict[str, str]:
    first = launch.ordinal * spec.tensor_parallel
    found = {
        "PYTHONPATH": "",
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        **visible(spec.cores[first : first + spec.tensor_parallel], "NEURON_RT_VISIBLE_CORES"),
    }
    if role(spec, launch) != BOTH:
        found |= {"NEURON_RT_ASYNC_SENDRECV_COMPLETION": "1", "NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT": "45645"}
    return found | dict(spec.environment or {})


def wire(spec: NeuronSpec, launch: Launch) -> dict[str, Any]:
    if role(spec, launch) == BOTH:
        return {}
    told: dict[str, Any] = {"role": role(spec, launch), "connector": connectors.NEURON}
    return told | ({"kv": {"etcd": spec.etcd}} if spec.etcd else {})


def requires(spec: NeuronSpec, launch: Launch) -> tuple[Requirement, ...]:
    python = launch.path(spec.python)
    return (
        Requirement("program", python, advice="set engine.python to the interpreter of the Neuron environment"),
        Requirement("module", "vllm", python, advice="use the Neuron image, or install its vLLM"),
        Requirement("module", "neuronx_distributed_inference", python, advice="install NxD Inference"),
        Requirement("folder", "/dev/neuron0", advice="this host has no Neuron device"),
    )


NEURON = Kind(
    name="neuron",
    title="vLLM on Neuron",
    spec=NeuronSpec,
    ports=("http", "side"),
    command=command,
    environment=environment,
    health_path="/health",
    models_path="/v1/models",
    metrics_path="/metrics",
    scrape=VLLM_SCRAPE,
    load_timeout_s=7200,  # the first start compiles
    drain_timeout_s=600,
    grace_s=15,
    wire=wire,
    numbered=lambda spec: True,  # each has the cores after those of the one before
    max_replicas=lambda spec: len(spec.cores) // spec.tensor_parallel if spec.cores else None,
    requires=requires,
    device="aws.amazon.com/neuroncore",
    devices=lambda spec: spec.tensor_parallel,
    connectors=(connectors.NEURON,),
)
