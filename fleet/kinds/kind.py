"""What the fleet needs to know about one kind of engine. A new kind is one file and one line in KINDS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.kinds.option import Problem, build, check
from router.figures import Scrape


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a command line is made from."""

    instance: str
    model: str  # name under which the engine serves
    host: str  # address to listen on
    ports: Mapping[str, int]  # use → number
    python: str  # interpreter of this installation
    ordinal: int = 0  # the instance's number in its pool


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
    # What routers are told of an instance besides: role, connector, kv, events, tokenizer (router/wire.py)
    wire: Callable[[Any, Launch], dict[str, Any]] = lambda spec, launch: {}


def check_engine(kind: Kind, given: Mapping[str, Any], path: str) -> list[Problem]:
    """Everything wrong with the options given for the kind: each by itself, then all of them together."""
    problems = check(kind.spec, given, path)
    if problems:
        return problems
    refused = kind.refuse(build(kind.spec, given))
    return [Problem(f"{path}.{name}", given.get(name), message) for name, message in refused.items()]
