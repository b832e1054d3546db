"""The `neuron` kind: vLLM on AWS Trainium and Inferentia (NxD Inference), colocated or as prefill and decode servers.

Only its command line is tested: running it takes Neuron devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.kinds.common_options import (
    arguments_option,
    environment_option,
    image_option,
    model_option,
    prefill_instances_option,
    python_option,
)
from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.option import option
from fleet.kinds.serving import BOTH, PREFILL, ROLES, compact, flags, role_of, visible
from router.contract import connectors
from router.contract.engine_metrics import VLLM_SCRAPE


@dataclass(frozen=True)
class NeuronSpec:
    model: str | None = model_option()
    python: str = python_option("the Neuron environment")
    cores: tuple[str, ...] = option(
        (),
        title="NeuronCores",
        help="Ids, assigned to the instances in order, tensor_parallel each; empty: all are visible.",
    )
    tensor_parallel: int = option(
        8, title="Tensor parallel", unit="cores", minimum=1, maximum=128, help="NeuronCores per instance."
    )
    max_model_len: int = option(
        8192,
        title="Longest request",
        unit="tokens",
        minimum=16,
        maximum=1_048_576,
        help="Graphs are compiled for this length.",
    )
    max_num_seqs: int = option(
        4,
        title="Sequences",
        minimum=1,
        maximum=1024,
        help="Batch size of the decode graph; requests in transfer count.",
    )
    role: str = option(BOTH, title="Role", choices=ROLES, help="Role of every instance.")
    prefill_instances: int = prefill_instances_option()
    etcd: str | None = option(
        None,
        title="etcd",
        kind="text",
        help="host:port where workers register; left out: a fixed pair of one prefill and one decode server.",
    )
    peer: str | None = option(
        None,
        title="Prefill host",
        kind="text",
        help="Without etcd: the prefill server's address, for the decode server.",
    )
    buffer_bytes: float = option(
        2e11, title="Transfer buffer", unit="bytes", minimum=1e6, maximum=1e13, help="For KV in transfer."
    )
    overrides: str = option("{}", title="Neuron configuration", help="JSON for --override-neuron-config.")
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
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
    found: dict[str, Any] = {"role": role(spec, launch), "connector": connectors.NEURON}
    return found | ({"kv": {"etcd": spec.etcd}} if spec.etcd else {})


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
    scrape=VLLM_SCRAPE,
    load_timeout_s=7200,  # the first start compiles
    drain_timeout_s=600,
    grace_s=15,
    wire=wire,
    numbered=lambda spec: True,  # an instance uses the cores that follow those of the previous one
    max_replicas=lambda spec: len(spec.cores) // spec.tensor_parallel if spec.cores else None,
    requires=requires,
    device="aws.amazon.com/neuroncore",
    devices=lambda spec, role: spec.tensor_parallel,
    connectors=(connectors.NEURON,),
)
