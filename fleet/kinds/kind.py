"""The interface between one kind of engine and the fleet and control plane. A new kind is one file and one line in
KINDS."""

import contextlib
import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fleet.engine.engine_model import EngineModel
from fleet.engine.tiers.shared import StoreModel
from fleet.kinds.listed import ListedEngine
from fleet.kinds.options.option import build, check
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.vllm.sleeping import VLLM_SLEEP, Sleeping
from fleet.kinds.wire import KvWire
from router.contract import ranks
from router.contract.metrics.engine_metrics import Scrape
from router.contract.values.problem import Problem


@dataclass(frozen=True, slots=True)
class Launch:
    """The inputs of a command line other than the options."""

    instance: str
    model: str  # name under which the engine serves
    host: str  # address to listen on
    ports: Mapping[str, int]  # use → number
    python: str  # interpreter of this installation
    ordinal: int = 0  # number of the instance in its pool
    folder: str = "."  # folder of the instance, to which files are written before each start
    base: str = "."  # installation folder, to which paths in the document that begin with ./ are relative
    peers: Mapping[str, str] = field(
        default_factory=dict
    )  # needed pool → host:port of its service; paired instance → its own host:port
    gpus: tuple[str, ...] = ()  # GPUs assigned by its placement; empty: those of the options
    listed: ListedEngine | None = None  # entry in the pool's source; None: no source lists it

    def sibling(self, ordinal: int) -> str:
        """Return the name of another instance of its pool."""
        return f"{self.instance.rpartition('-')[0]}-{ordinal}"

    def path(self, given: str) -> str:
        return str(Path(self.base, given)) if given.startswith("./") else given


GPU = "nvidia.com/gpu"
PAUSE_PATH = "/is_paused"  # path of vLLM with VLLM_SERVER_DEV_MODE
RequirementKind = Literal["program", "module", "folder", "gpu"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A precondition of a start on a node; fleet/node/prerequisites.py checks it."""

    kind: RequirementKind
    name: str  # a program, module or folder, or the id of a GPU
    of: str = ""  # for a module or GPU, the interpreter that must be able to import or see it
    need_gb: float = 0.0  # for a folder, free space; for a GPU, free memory
    advice: str = ""  # remedy if it is missing


@dataclass(frozen=True, slots=True)
class TwinModel:
    """The twin's model of an instance whose constants are known without a calibration."""

    engine: EngineModel
    source: str  # source of the constants, in words
    not_modelled: tuple[str, ...] = ()  # features left out of the model, in words
    transferred: bool = False  # True if no constant was fitted to this model with this number of GPUs
    family: str = ""  # family (fleet/engine/tables.py) of its measured tables; empty: other constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    title: str
    spec: type[Any]  # frozen dataclass of options (fleet/kinds/options/option.py)
    ports: tuple[str, ...]  # uses of ports; "http" takes requests
    port_spans: Callable[[Any], Mapping[str, int]] = lambda spec: {}  # use → consecutive ports; default 1; 0: none
    command: Callable[[Any, Launch], list[str]]
    environment: Callable[[Any, Launch], dict[str, str]] = lambda spec, launch: {}
    key_variable: str = ""  # variable from which the process reads the key that it requires; empty: it requires none
    health_path: str = "/health"
    models_path: str = "/v1/models"  # empty if the kind has none
    metrics_path: str = "/metrics"
    # Page that reports whether it is paused; if that is its health page, by status 503. Empty: it cannot be paused.
    pause_path: str = ""
    scrape: Scrape
    load_timeout_s: float  # time from launch to ready after which the start counts as failed
    drain_timeout_s: float  # time after which running requests are aborted
    grace_s: float  # time from SIGTERM to SIGKILL
    refuse: Callable[[Any], dict[str, str]] = lambda spec: {}  # option → why it conflicts with the others
    refuse_for: Callable[[Any, str], dict[str, str]] = lambda spec, model: {}  # `refuse` by the pool's model
    needs: Callable[[Any], tuple[str, ...]] = lambda spec: ()  # pools that must have a ready instance before a start
    # Ordinal of the instance whose address this instance is started with; None: none.
    pair: Callable[[Any, int], int | None] = lambda spec, ordinal: None
    pair_port: str = "http"  # use of the port on which the paired instance is reached
    # Ordinals of the instances that serve only together, including this one; empty: it serves alone.
    group: Callable[[Any, int], tuple[int, ...]] = lambda spec, ordinal: ()
    # Why a list in the options does not fit this many prefill and decode instances; None: no list limits them.
    fixed_sides: Callable[[Any, int, int], str] | None = None
    can_sleep: Callable[[Any], bool] = lambda spec: False  # True if it answers the paths of `sleeping`
    sleeping: Sleeping = VLLM_SLEEP
    # Number of LoRA adapters per instance, loaded by POST /v1/load_lora_adapter; 0: it cannot load any.
    adapter_slots: Callable[[Any], int] = lambda spec: 0
    wire: Callable[[Any, Launch], KvWire] = lambda spec, launch: KvWire()
    serves: bool = True  # True if it answers requests: routers know it, and its pool's model must be served
    launched: bool = True  # False: it is started and stopped by another system; Weir only watches it and routes to it
    url: Callable[[Any, Launch], str] = lambda spec, launch: ""  # address of an instance that is not launched
    # Options that can change without restarting an instance. Options that older versions of Weir did not have are left
    # out of the configuration at their default, because an upgrade must not restart engines.
    free_options: tuple[str, ...] = ()
    later_options: tuple[str, ...] = ()
    # True if a source, such as a DNS name, determines the number of a pool's instances and their addresses
    # (fleet/discovery).
    has_source: Callable[[Any], bool] = lambda spec: False
    service: str = ""  # use of the port on which other pools reach it; empty if no pool does
    max_replicas: Callable[[Any], int | None] = lambda spec: None  # largest number that the options allow; None: any
    # True if an instance's role or its share of a list depends on its number in the pool, so that numbers must stay 0 …
    # n-1.
    numbered: Callable[[Any], bool] = lambda spec: bool(getattr(spec, "prefill_instances", 0))
    files: Callable[[Any, Launch], dict[str, str]] = lambda spec, launch: {}  # name → text, written to Launch.folder
    requires: Callable[[Any, Launch], tuple[Requirement, ...]] = lambda spec, launch: ()
    # Folder that may run out of space; empty if there is none
    volume: Callable[[Any, Launch], str] = lambda spec, launch: ""
    # Folder in which the engine's processes collect their metrics, emptied before each start; empty: none.
    metrics_folder: Callable[[Any, Launch], str] = lambda spec, launch: ""
    image: str = ""  # container image on a Kubernetes node; empty if the node's file or the document names one
    device: str = ""  # Kubernetes resource of its accelerators; empty: it uses none
    devices: Callable[[Any, str], int] = lambda spec, role: 0  # accelerators used by an instance of that role
    # Hardware cost of an instance of a role; None: its devices are its GPUs.
    hardware: Callable[[Any, str], "Hardware"] | None = None
    connectors: tuple[str, ...] = ()  # connectors that its options can choose (router/contract/connectors.py)
    facts: Callable[[Any, Launch], tuple[tuple[str, str], ...]] = lambda spec, launch: ()  # (label, text) for its page
    whole_prompts: bool = False  # True if it batches as in fleet/engine/neuron_batches.py
    simulated: bool = False  # True if its metrics come from a model of an engine, not from an engine
    time_scale_option: str = ""  # option that speeds up its clock; empty: it runs only in real time
    bytes_per_token: float | None = None  # bytes per token of its tokenizer; None: ask POST /tokenize
    # The twin's store for this kind, given the KV bytes per token; None if it is no store, or unknown.
    twin_store: Callable[[Any, float], StoreModel] | None = None
    # How KV is moved or stored below the GPU, for an instance whose law was measured.
    twin_kv: Callable[[Any, Launch], TwinKv] = lambda spec, launch: TwinKv()
    # The twin's model; None: the twin needs a calibration. Raise UnknownProfile.
    twin_model: Callable[[Any, Launch], TwinModel] | None = None
    has_law: Callable[[Any], bool] = lambda spec: True  # False: with these options, only a calibration provides the law


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware with an hourly price."""

    gpus: int = 0
    dram_gb: float = 0.0  # host memory for KV
    ssd_gb: float = 0.0  # drives for KV


def hardware_of(kind: Kind, spec: Any, role: str) -> Hardware:
    if kind.hardware is not None:
        return kind.hardware(spec, role)
    return Hardware(kind.devices(spec, role) if kind.device == GPU else 0)


def hardware_of_pool(kind: Kind, spec: Any, endpoints: Iterable[str]) -> Hardware:
    """Return the hardware of all instances behind these endpoints; the first `prefill_instances` of a split pool
    prefill."""
    instances = len({ranks.instance_of(endpoint) for endpoint in endpoints})
    prefills = min(getattr(spec, "prefill_instances", 0) or 0, instances)
    roles = [*["prefill"] * prefills, *["decode" if prefills else "both"] * (instances - prefills)]
    each = [hardware_of(kind, spec, role) for role in roles]
    return Hardware(*(sum(getattr(one, name) for one in each) for name in Hardware.__slots__))


def twin_model_of(kind: Kind, spec: Any) -> Callable[[Any, Launch], TwinModel] | None:
    """Return the twin's model of these engines; None if it needs a calibration."""
    return kind.twin_model if kind.has_law(spec) else None


def is_numbered(kind: Kind, spec: Any) -> bool:
    return kind.numbered(spec) or kind.max_replicas(spec) is not None


def fixed_sides(kind: Kind, spec: Any, prefills: int, decodes: int) -> str:
    """Return why the prefill and decode sides, with at most this many instances each, cannot be scaled separately;
    empty if they can."""
    declared = getattr(spec, "prefill_instances", 0)
    if not declared or not kind.launched:
        return "needs prefill_instances in engines that Weir starts"
    if kind.pair(spec, declared) is not None:
        return "cannot be combined with fixed pairs: a decoder that is added would have no prefill instance"
    if kind.fixed_sides is not None:
        return kind.fixed_sides(spec, prefills, decodes)
    if kind.max_replicas(spec) is not None:
        return "cannot be combined with a list of GPUs or addresses"
    if kind.group(spec, 0) or kind.numbered(dataclasses.replace(spec, prefill_instances=0)):
        return "cannot be combined with engines whose ordinal decides more than their side, as in groups"
    return ""


SPLIT = "would split a group of instances, which serves only whole"


def whole_replicas(kind: Kind, spec: Any, replicas: int) -> tuple[int, int]:
    """Return the nearest numbers below and above that split no group; both are `replicas` if that splits none."""
    group = kind.group(spec, replicas - 1) if replicas > 0 else ()
    return (group[0], group[-1] + 1) if group and group[-1] >= replicas else (replicas, replicas)


def split_group(kind: Kind, spec: Any, replicas: int) -> str:
    """Describe the nearest allowed numbers for one that splits a group; empty if it splits none."""
    fewer, more = whole_replicas(kind, spec, replicas)
    most = kind.max_replicas(spec)
    too_many = most is not None and more > most
    return "" if fewer == more else f"{fewer}" if too_many else f"{fewer} or {more}"


def check_engine(kind: Kind, given: Mapping[str, object], path: str, model: str = "") -> list[Problem]:
    """Return all problems of the given options: of each option by itself, of their combination, and with the pool's
    model."""
    problems = check(kind.spec, given, path)
    faulty = {problem.path.removeprefix(f"{path}.") for problem in problems}
    spec = build(kind.spec, {name: value for name, value in given.items() if name not in faulty})
    judged = _judged(spec, faulty) if faulty else spec
    refused: dict[str, str] = {}
    for refuse in (kind.refuse, lambda spec: kind.refuse_for(spec, model)):
        with contextlib.suppress(NotJudged):
            refused = refuse(judged) | refused
    return [*problems, *(Problem(f"{path}.{name}", given.get(name), text) for name, text in refused.items())]


class NotJudged(Exception):
    """A check reads an option that is itself faulty."""


def _judged(spec: Any, faulty: Container[str]) -> Any:
    """Return the options with the faulty ones unreadable. The result has its own dataclass, for
    `dataclasses.replace`.
    """

    def read(self: Any, name: str) -> Any:
        if name in faulty:
            raise NotJudged
        return object.__getattribute__(self, name)

    made: Any = object.__new__(type("Judged", (type(spec),), {"__getattribute__": read}))
    made.__dict__.update(vars(spec))
    return made
