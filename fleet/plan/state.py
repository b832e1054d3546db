"""How the state of an instance follows from what is seen of it. Pure: its record and one look at it in, a move out.

           start                    /health + model            drain
stopped ──────────► starting ► loading ──────────► ready ◄──────────► draining
   ▲                   │          │                │  ▲                   │
   │ stop              └──────────┴─ process ends ─┤  │ answers again     │ idle
   │                                   ▼           ▼  │                   ▼
stopping ◄──────────────────────── failed     unreachable ──────────► stopping
"""

from dataclasses import dataclass
from typing import Literal

Health = Literal["ok", "error", "slow", "refused"]

SILENT_S = 1.9  # without an answer for so long: out of routing (probes come each second and last at most 1.5 s)
REPLACE_AFTER_S = 10.0  # out of reach for so long: killed and started again
STABLE_S = 60.0  # ready for so long: earlier failures are forgotten
_BACKOFF_FIRST_S = 10.0
_BACKOFF_MOST_S = 300.0


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """What is recorded of an instance that has a process."""

    state: str
    reason: str
    desired: str  # "running", "drained", "asleep" or "stopped"
    failing: bool  # it is being stopped because it failed
    failures: int  # in a row
    since: float  # Unix seconds, in that state


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at its process and its endpoints."""

    at: float  # Unix seconds
    alive: bool  # that very process runs
    suspended: bool  # alive, but not to be sent requests (SIGSTOP, a debugger, an eviction)
    health: Health
    serves_model: bool  # /v1/models names it
    has_metrics: bool  # /metrics has answered in this look
    silent_s: float  # since it last gave a sign of life
    error: str  # what went wrong with the probe, in words
    failure_cause: str  # why the process ended, from its log
    away: str = ""  # why it must get no requests, of one that is suspended
    waits: str = ""  # for what, before it runs at all
    ended: str = "the process ended"  # how its end is told
    full: str = ""  # the folder of its KV tier whose disk is full; empty: there is room, or no such tier


@dataclass(frozen=True, slots=True)
class Move:
    to: str
    reason: str
    failure: bool = False  # counts for the back-off


def backoff_s(failures: int) -> float:
    """Seconds to wait before the next start after so many failures in a row: 10, 20, 40 … 300."""
    if failures < 1:
        return 0.0
    return float(min(_BACKOFF_FIRST_S * 2 ** min(failures - 1, 10), _BACKOFF_MOST_S))


def is_stable(record: InstanceRecord, now: float) -> bool:
    return record.state == "ready" and now - record.since >= STABLE_S


def next_move(record: InstanceRecord, observation: Observation) -> Move | None:
    """Where it goes from here, or None. A move to the same state only words the reason anew."""
    if not observation.alive:
        return _ended(record, observation)
    move = _LIVING[record.state](record, observation) if record.state in _LIVING else None
    return None if move == Move(record.state, record.reason) else move


def _ended(record: InstanceRecord, observation: Observation) -> Move:
    if record.state == "stopping":
        return Move("failed" if record.failing else "stopped", record.reason)
    return Move("failed", f"{observation.ended} while {record.state}: {observation.failure_cause}", failure=True)


def _loading(record: InstanceRecord, observation: Observation) -> Move | None:
    if observation.health == "ok" and observation.serves_model:
        return _serving(record)
    return Move("loading", observation.waits) if observation.waits else None


def _serving(record: InstanceRecord) -> Move:
    if record.desired == "drained":
        return Move("draining", "drained on request; the process stays")
    if record.desired == "asleep":
        return Move("draining", "to be put to sleep")
    return Move("ready", "answers /health and serves the model")


def _ready(record: InstanceRecord, observation: Observation) -> Move | None:
    lost = _lost(observation)
    if lost:
        return Move("unreachable", lost)
    if observation.health == "ok":
        if observation.full:
            return Move("ready", f"{_FULL} ({observation.full}); it serves on without writing there")
        return _serving(record) if record.reason.startswith((_BUSY, _FULL)) else None
    return Move("ready", f"{_BUSY}: /health is slow, but its figures move") if _is_busy(observation) else None


_BUSY = "busy"
_FULL = "the disk of its KV tier is full"


def _is_busy(observation: Observation) -> bool:
    # A long prefill may hold up /health. An error or a refused connection is no sign of work.
    return observation.health == "slow" and observation.has_metrics


def _lost(observation: Observation) -> str:
    """Why requests must not be sent there, in words; empty while they may."""
    if observation.suspended:
        return observation.away or "the process is suspended (SIGSTOP or a debugger)"
    if observation.health == "ok" or _is_busy(observation) or observation.silent_s < SILENT_S:
        return ""
    return f"no answer for {observation.silent_s:.1f} s: {observation.error}"


def _draining(record: InstanceRecord, observation: Observation) -> Move | None:
    lost = _lost(observation)
    return Move("unreachable", lost) if lost else None


def _unreachable(record: InstanceRecord, observation: Observation) -> Move | None:
    if observation.health == "ok" and not observation.suspended:
        return _serving(record)
    return None


_LIVING = {"loading": _loading, "ready": _ready, "draining": _draining, "unreachable": _unreachable}
