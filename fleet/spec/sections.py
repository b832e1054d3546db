"""Sections of a pool: update, placement, schedule, autoscale, slo, access. Pure.

fleet/spec/section_checks.py checks them as mappings of the document; here they become frozen dataclasses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import msgspec
from msgspec import Struct

from fleet.kinds.options.option import build, mapping_option, option
from router.contract.values.reading import read_value

MAX_REPLICAS = 1_024  # replicas of one pool
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
BillingLine = Literal["auto", "keep", "remove"]
CLASSES = ("warm", "medium", "heavy")


@dataclass(frozen=True)
class Update:
    """The rollout of a changed configuration."""

    strategy: str = option(
        "in_place",
        "Strategy",
        "in_place: drain, stop and start one by one. surge: start new instances first, then drain old ones.",
        kind="text",
        choices=("in_place", "surge"),
    )
    max_surge: int | None = option(
        None,
        "Extra instances",
        "With surge; default: a quarter of the pool.",
        unit="instances",
        range=(1, MAX_REPLICAS),
    )
    max_unavailable: int | None = option(
        None,
        "Out of routing",
        "Default: a quarter of the pool in place, none with surge.",
        unit="instances",
        range=(0, MAX_REPLICAS),
    )
    on_failure: str = option(
        "halt",
        "On failure",
        "halt: stop the change until an operator decides. rollback: return to the last working configuration.",
        kind="text",
        choices=("halt", "rollback"),
    )
    replace_after_s: float | None = option(
        None,
        "Replace when silent",
        "Limit for an instance that answers neither health nor metrics page, and produces no token. Default: 10 s.",
        unit="s",
        kind="float",
        range=(5, 3600),
    )

    def surge(self, replicas: int) -> int:
        """Return the number of extra instances during a change."""
        if self.strategy != "surge":
            return 0
        return self.max_surge if self.max_surge is not None else max(1, replicas // 4)

    def unavailable(self, replicas: int) -> int:
        """Return the number of instances that may be out of routing at the same time during a change."""
        if self.max_unavailable is not None:
            return self.max_unavailable
        return 0 if self.strategy == "surge" else max(1, replicas // 4)


@dataclass(frozen=True)
class Placement:
    """The nodes that instances may run on, and the resources of one instance."""

    nodes: tuple[str, ...] = option((), "Nodes", "Empty: any.")
    labels: Mapping[str, str] = mapping_option(title="Labels", help="Labels that the node must have.")
    spread: bool = option(True, "Spread", "Spread over the nodes; otherwise use as few nodes as possible.", kind="bool")
    cpus: float = option(0.0, "CPUs", "Per instance.", kind="float", range=(0, 4096))
    memory_gib: float = option(0.0, "Memory", "Per instance.", unit="GiB", kind="float", range=(0, 65_536))
    gpus: int = option(0, "GPUs", "Per instance, exclusively.", range=(0, 64))


@dataclass(frozen=True)
class ScheduleWindow:
    days: tuple[str, ...]  # days on which the window begins
    begins: int  # minutes after midnight
    ends: int  # minutes after midnight, up to 1440; at or before `begins`: on the next day
    replicas: int

    @property
    def text(self) -> str:
        """Describe the window: Mon–Wed, Fri 08:00–18:00"""
        days = "daily" if set(self.days) == set(DAYS) else ", ".join(_runs(self.days))
        return f"{days} {_clock(self.begins)}–{_clock(self.ends)}"


@dataclass(frozen=True)
class Schedule:
    timezone: str = "UTC"
    windows: tuple[ScheduleWindow, ...] = ()


def _limit(title: str, help: str) -> Any:
    return option(None, title, help, unit="instances", range=(1, MAX_REPLICAS))


@dataclass(frozen=True)
class Autoscale:
    """The rules by which the load sets the number of instances."""

    mode: str = option(
        "advisory", "Mode", "advisory only reports what it would do.", kind="text", choices=("advisory", "automatic")
    )
    min: int = option(1, "Minimum", "Lower limit; 0: wakes on demand.", unit="instances", range=(0, MAX_REPLICAS))
    max: int = option(8, "Maximum", "Upper limit.", unit="instances", range=(1, MAX_REPLICAS))
    prefill_min: int | None = _limit("Fewest that prefill", "Lower limit of those that prefill; left out: 1.")
    prefill_max: int | None = _limit(
        "Most that prefill",
        "Scales prefill and decode instances each by their own load; left out: as many as prefill_instances.",
    )
    decode_min: int | None = _limit("Fewest that decode", "Lower limit of decoders, with prefill_max; left out: 1.")
    decode_max: int | None = _limit("Most that decode", "Upper limit of decoders; left out: max alone.")
    target_queue: float | None = option(
        None, "Queue", "Waiting requests per instance.", unit="requests", kind="float", range=(0.1, 10_000)
    )
    target_kv: float | None = option(
        None, "KV usage", "Mean share of KV blocks in use.", unit="share", kind="float", range=(0.05, 1)
    )
    up_after_s: float = option(
        15.0, "Up after", "Time above the target before scaling up.", unit="s", kind="float", range=(1, 3600)
    )
    down_after_s: float = option(
        300.0, "Down after", "Time below the target before scaling down.", unit="s", kind="float", range=(1, 3600)
    )
    cooldown_s: float = option(
        60.0, "Cooldown", "Minimum time between two steps.", unit="s", kind="float", range=(0, 3600)
    )
    idle_s: float = option(
        600.0,
        "To zero after",
        "With a minimum of 0: time without any request before the last instance is removed.",
        unit="s",
        kind="float",
        range=(10, 3600),
    )
    to_zero: str = option(
        "stop",
        "To zero by",
        "With a minimum of 0: engines that sleep keep their GPUs, and wake within seconds.",
        kind="text",
        choices=("stop", "sleep"),
    )
    wake_max_held: int = option(
        100,
        "Held for a wake",
        "With a minimum of 0: requests that may wait in each router until an instance is ready.",
        unit="requests",
        range=(1, 10_000),
    )
    wake_max_wait_s: float = option(
        120.0,
        "Longest hold",
        "With a minimum of 0: a request waits this long for an instance to be ready.",
        unit="s",
        kind="float",
        range=(1, 3600),
    )
    slo_ttft_p90_ms: Mapping[str, float] = mapping_option(
        title="TTFT p90", unit="ms", help="Per class, for example {warm: 300}."
    )


def wakes_on_demand(given: Mapping[str, object]) -> bool:
    """Return whether the pool may scale to zero and a waiting request starts an instance: through this autoscaler, or,
    in advisory mode, through the system that follows its advice.
    """
    return bool(given) and autoscale_of(given).min == 0


def update_of(given: Mapping[str, object]) -> Update:
    return build(Update, given)


def autoscale_of(given: Mapping[str, object]) -> Autoscale:
    return build(Autoscale, {name: value for name, value in given.items() if value is not None})


def placement_of(given: Mapping[str, object], node: str = "") -> Placement:
    """Return the placement. `node` is the only node of a pool without a placement."""
    return Placement(nodes=(node,)) if node else read_value(given, Placement)


def slo_of(slo: Mapping[str, object], autoscale: Mapping[str, object]) -> dict[str, float]:
    """Return the TTFT p90 by class in ms; the autoscaler's target also counts as an SLO."""
    return {**autoscale_of(autoscale).slo_ttft_p90_ms, **read_value(slo, _Slo).ttft_p90_ms}


def schedule_of(given: Mapping[str, object]) -> Schedule:
    read = read_value(given, _Schedule)
    windows = (ScheduleWindow(one.days, _minutes(one.begins), _minutes(one.ends), one.replicas) for one in read.windows)
    return Schedule(read.timezone, tuple(windows))


class Access(Struct, frozen=True):
    """The parts of requests that reach the engines."""

    trusted_keys: frozenset[str] = frozenset()  # names of API keys whose requests may carry fields that steer engines
    salt_by_key: bool = False  # True: each API key has its own cache
    billing_line: BillingLine = "auto"  # treatment of Claude Code's line


def access_of(given: Mapping[str, object]) -> Access:
    return read_value(given, Access)


class _Slo(Struct, frozen=True):
    ttft_p90_ms: dict[str, int | float] = {}


class _Window(Struct, frozen=True):
    begins: str = msgspec.field(name="from")
    ends: str = msgspec.field(name="to")
    replicas: int
    days: tuple[str, ...] = DAYS


class _Schedule(Struct, frozen=True):
    timezone: str = "UTC"
    windows: list[_Window] = []


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _runs(days: tuple[str, ...]) -> Iterator[str]:
    """Yield the days; three or more consecutive days become a range: Mon–Wed, Fri."""
    for given, group in groupby(DAYS, days.__contains__):
        run = [day.capitalize() for day in group]
        if given:
            yield f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(run)
