"""The state machine of an instance. Pure: its record and one observation in, a move out.

           start                    /health + model            drain
stopped ──────────► starting ► loading ──────────► ready ◄──────────► draining
   ▲                   │          │                │  ▲                   │
   │ stop              └──────────┴─ process ends ─┤  │ answers again     │ idle
   │                                   ▼           ▼  │                   ▼
stopping ◄──────────────────────── failed     unreachable ──────────► stopping

An instance that is stalled by what routers report is unreachable too, with that reason; `stall_move` alone brings it
back.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

Health = Literal["ok", "error", "slow", "refused"]

SILENT_S = 1.9  # time without an answer after which it leaves routing (a probe each second takes at most 1.5 s)
REPLACE_AFTER_S = 10.0  # time unreachable before it is killed and restarted, unless its pool has another limit
REPLACE_STALLED_S = 60.0  # the same limit while it answers but produces no token
REPLACE_UNPROVEN_S = 600.0  # the same limit if it has produced none since its start, as it may be compiling
STABLE_S = 60.0  # time in the state ready that resets the failure count
_BACKOFF_FIRST_S = 10.0
_BACKOFF_MOST_S = 300.0


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """Record of an instance with a process."""

    state: str
    reason: str
    desired: str  # "running", "drained", "asleep" or "stopped"
    failing: bool  # True if it is stopping because of a failure
    failures: int  # failures in a row
    since: float  # Unix time at which the state began
    may_sleep: bool = False  # True if it sleeps, or has begun to without a known outcome


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of the process and its endpoints at one moment."""

    at: float  # Unix seconds
    alive: bool  # True if the recorded process runs
    suspended: bool  # True if alive, but unfit for requests (SIGSTOP, a debugger, an eviction)
    health: Health
    serves_model: bool  # True if /v1/models names the model
    has_metrics: bool  # True if /metrics answered
    silent_s: float  # seconds since its last answer
    error: str  # error of the probe
    failure_cause: str  # cause from its log, once the process has ended
    suspended_why: str = ""
    waits_for: str = ""  # what it waits for before it runs
    end_text: str = "the process ended"
    full_folder: str = ""  # folder of its KV tier, if its disk is full
    closed_why: str = ""  # why it answers but takes no requests: it requires a key that was not sent, or is paused
    produces: bool = False  # True if a router has just received tokens from it


@dataclass(frozen=True, slots=True)
class Move:
    to: str
    reason: str
    failure: bool = False  # True if it counts towards the back-off


def backoff_s(failures: int) -> float:
    """Return the seconds before the next start, by failures in a row: 10, 20, 40 … 300."""
    if failures < 1:
        return 0.0
    return float(min(_BACKOFF_FIRST_S * 2 ** min(failures - 1, 10), _BACKOFF_MOST_S))


def is_stable(record: InstanceRecord, now: float) -> bool:
    return record.state == "ready" and now - record.since >= STABLE_S


def next_move(record: InstanceRecord, observation: Observation) -> Move | None:
    """Return the next move, or None. A move to the same state only updates the reason."""
    if not observation.alive:
        return _ended(record, observation)
    move = _LIVING[record.state](record, observation) if record.state in _LIVING else None
    return None if move == Move(record.state, record.reason) else move


def _ended(record: InstanceRecord, observation: Observation) -> Move:
    if record.state == "stopping":
        return Move("failed" if record.failing else "stopped", record.reason)
    return Move("failed", f"{observation.end_text} while {record.state}: {observation.failure_cause}", failure=True)


def _loading(record: InstanceRecord, observation: Observation) -> Move | None:
    if observation.health == "ok" and observation.serves_model and not observation.suspended:
        return _serving(record)
    why = observation.waits_for or observation.closed_why
    return Move("loading", why) if why else None


def _serving(record: InstanceRecord) -> Move:
    if record.desired == "drained":
        return Move("draining", "drained on request; the process stays")
    if record.desired == "asleep" or record.may_sleep:
        return Move("draining", "going to sleep" if record.desired == "asleep" else "being woken")
    return Move("ready", "answers /health and serves the model")


def _ready(record: InstanceRecord, observation: Observation) -> Move | None:
    lost = _lost(observation)
    if lost:
        return Move("unreachable", lost)
    if observation.health == "ok":
        if observation.full_folder:
            return Move("ready", f"{_FULL} ({observation.full_folder}); it still serves but cannot write there")
        return _serving(record) if record.reason.startswith((_BUSY, _FULL)) else None
    if not _is_busy(observation):
        return None
    return Move(
        "ready", f"{_BUSY}: /health is slow, but {'/metrics answers' if observation.has_metrics else 'tokens arrive'}"
    )


_BUSY = "busy"
_FULL = "the disk of its KV tier is full"


def beside(status: str, reason: str) -> str:
    """Return the reason in a form that can follow a status, as in "drained, by ada". Empty if all is well."""
    if status == "ready":
        return reason if reason.startswith((_BUSY, _FULL)) else ""
    return reason.removeprefix("drained ") if status in ("draining", "drained") else reason


def _is_busy(observation: Observation) -> bool:
    # A long prefill or a busy host may delay /health; an error or a refused connection is no sign of work.
    return observation.health == "slow" and (observation.has_metrics or observation.produces)


def _lost(observation: Observation) -> str:
    """Return why the instance must not get requests; empty if it may."""
    if observation.suspended:
        return observation.suspended_why or "the process is suspended (SIGSTOP or a debugger)"
    if observation.closed_why:
        return observation.closed_why
    if observation.health == "ok" or _is_busy(observation) or observation.silent_s < SILENT_S:
        return ""
    return f"no answer for {observation.silent_s:.1f} s: {observation.error}"


def _draining(record: InstanceRecord, observation: Observation) -> Move | None:
    lost = _lost(observation)
    return Move("unreachable", lost) if lost else None


def _unreachable(record: InstanceRecord, observation: Observation) -> Move | None:
    if is_stalled(record.reason):  # a health page does not show stalls; if it is also silent, the instance is lost
        lost = _lost(observation)
        return Move("unreachable", lost) if lost else None
    answers = observation.health == "ok" or (observation.health == "slow" and observation.produces)
    if answers and not observation.suspended and not observation.closed_why:
        return _serving(record)
    return Move("unreachable", observation.closed_why) if observation.closed_why else None


PAUSED = "paused (POST /pause): requests would wait until POST /resume"
NOT_READY = "paused (POST /pause_generation) or stopping: GET /ready answers 503"  # SGLang answers both with this page
_STALLED = "stalled"
_UNPROVEN = "stalled since its start"


def is_stalled(reason: str) -> bool:
    return reason.startswith(_STALLED)


def stalled_reason(why: str, *, proven: bool) -> str:
    """Return the reason of a stalled instance. `why` is quoted from the routers' reports."""
    return f"{_STALLED if proven else _UNPROVEN}: {why.removeprefix(f'{_STALLED}: ')}"


def stall_move(record: InstanceRecord, reason: str) -> Move | None:
    """Return the move that follows from the routers' reports. `reason` says why the instance is stalled; empty if it is
    not.
    """
    if reason and record.state in ("ready", "draining"):
        return Move("unreachable", reason)
    if not reason and record.state == "unreachable" and is_stalled(record.reason):
        return _serving(record)
    return None


def replace_after_s(reason: str, silent_s: float | None) -> float:
    """Return how long an instance that is unreachable for this reason may take to recover by itself. `silent_s` is the
    pool's limit for an instance that does not answer.
    """
    if reason in (PAUSED, NOT_READY):  # someone paused it and will resume it
        return inf
    if reason.startswith(_UNPROVEN):
        return REPLACE_UNPROVEN_S
    return REPLACE_STALLED_S if is_stalled(reason) else silent_s or REPLACE_AFTER_S


_LIVING = {"loading": _loading, "ready": _ready, "draining": _draining, "unreachable": _unreachable}
