"""What the fleet needs to know about one kind of engine. A new kind is one file and one line in KINDS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fleet.kinds.option import build, check
from router.contract.engine_metrics import Scrape
from router.contract.problem import Problem


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a command line is made from."""

    instance: str
    model: str  # name under which the engine serves
    host: str  # address to listen on
    ports: Mapping[str, int]  # use → number
    python: str  # interpreter of this installation
    ordinal: int = 0  # the instance's number in its pool
    folder: str = "."  # the instance's own: files are written there before each start
    base: str = "."  # the installation's: where paths of the document that begin with ./ are taken from
    peers: Mapping[str, str] = field(default_factory=dict)  # pool that it needs → host:port of that pool's service

    gpus: tuple[str, ...] = ()  # that its placement gave it on its node; empty: as the options say

    def path(self, given: str) -> str:
        return str(Path(self.base, given)) if given.startswith("./") else given


RequirementKind = Literal["program", "module", "folder", "gpu"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a node must have before an instance can start there (fleet/node/prerequisites.py looks)."""

    kind: RequirementKind
    name: str  # the program, the module, the folder, the id of the GPU
    of: str = ""  # of a module or a GPU: the interpreter that must find it
    need_gb: float = 0.0  # of a folder: free space; of a GPU: free memory
    advice: str = ""  # what to do when it is missing


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    title: str
    spec: type  # frozen dataclass of options (fleet/kinds/option.py)
    ports: tuple[str, ...]  # uses; "http" is where requests go
    command: Callable[[Any, Launch], list[str]]
    environment: Callable[[Any, Launch], dict[str, str]]
    health_path: str
    models_path: str
    metrics_path: str
    scrape: Scrape
    load_timeout_s: float  # launched but not ready for longer: failed
    drain_timeout_s: float  # requests that still run then are cut off
    grace_s: float  # between SIGTERM and SIGKILL
    refuse: Callable[[Any], dict[str, str]] = lambda spec: {}  # option → why it does not go with the others
    # Pools that must have a ready instance before one of this is started
    needs: Callable[[Any], tuple[str, ...]] = lambda spec: ()
    # Whether it answers POST /sleep?level= and /wake_up with these options
    can_sleep: Callable[[Any], bool] = lambda spec: False
    # What routers are told of an instance besides: role, connector, kv, events, tokenizer (docs/redis.md)
    wire: Callable[[Any, Launch], dict[str, Any]] = lambda spec, launch: {}
    simulated: bool = False  # its figures come from a model of an engine, not from one
    serves: bool = True  # answers requests: routers are told of it, and its pool's model must be there
    launched: bool = True  # False: somebody else starts and ends it; it is watched and routed to
    service: str = ""  # use of the port at which other pools reach it; empty: none needs it
    url: Callable[[Any, Launch], str] = lambda spec, launch: ""  # of one that is not launched
    most: Callable[[Any], int | None] = lambda spec: None  # replicas that these options allow; None: any number
    # Whether what an instance is depends on its number in the pool (its role, a list dealt out): numbers stay 0 … n-1
    numbered: Callable[[Any], bool] = lambda spec: bool(getattr(spec, "prefill_instances", 0))
    files: Callable[[Any, Launch], dict[str, str]] = lambda spec, launch: {}  # name → text, into Launch.folder
    requires: Callable[[Any, Launch], tuple[Requirement, ...]] = lambda spec, launch: ()
    volume: Callable[[Any, Launch], str] = lambda spec, launch: ""  # folder that fills up; empty: it has none


def is_numbered(kind: Kind, spec: Any) -> bool:
    return kind.numbered(spec) or kind.most(spec) is not None


def check_engine(kind: Kind, given: Mapping[str, Any], path: str) -> list[Problem]:
    """Everything wrong with the options given for the kind: each by itself, then all of them together."""
    problems = check(kind.spec, given, path)
    if problems:
        return problems
    refused = kind.refuse(build(kind.spec, given))
    return [Problem(f"{path}.{name}", given.get(name), message) for name, message in refused.items()]
