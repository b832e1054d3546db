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
class ObservedProcess:
    """What is recorded of an instance that has a process."""

    state: str
    reason: str
    wish: str  # "running", "drained", "asleep" or "stopped"
    failing: bool  # it is being stopped because it failed
    failures: int  # in a row
    since: float  # Unix seconds, in that state


@dataclass(frozen=True, slots=True)
class Look:
    """One look at its process and its endpoints."""

    at: float  # Unix seconds
    alive: bool  # that very process runs
    suspended: bool  # alive, but not to be sent requests (SIGSTOP, a debugger, an eviction)
    health: Health
    serves_model: bool  # /v1/models names it
    sample_moves: bool  # /metrics has answered in this look
    silent_s: float  # since it last gave a sign of life
    error: str  # what went wrong with the probe, in words
    last_words: str  # why the process ended, from its log
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


def is_stable(seen: ObservedProcess, now: float) -> bool:
    return seen.state == "ready" and now - seen.since >= STABLE_S


def next_move(seen: ObservedProcess, look: Look) -> Move | None:
    """Where it goes from here, or None. A move to the same state only words the reason anew."""
    if not look.alive:
        return _ended(seen, look)
    move = _LIVING[seen.state](seen, look) if seen.state in _LIVING else None
    return None if move == Move(seen.state, seen.reason) else move


def _ended(seen: ObservedProcess, look: Look) -> Move:
    if seen.state == "stopping":
        return Move("failed" if seen.failing else "stopped", seen.reason)
    return Move("failed", f"{look.ended} while {seen.state}: {look.last_words}", failure=True)


def _loading(seen: ObservedProcess, look: Look) -> Move | None:
    if look.health == "ok" and look.serves_model:
        return _serving(seen)
    return Move("loading", look.waits) if look.waits else None


def _serving(seen: ObservedProcess) -> Move:
    if seen.wish == "drained":
        return Move("draining", "drained on request; the process stays")
    if seen.wish == "asleep":
        return Move("draining", "to be put to sleep")
    return Move("ready", "answers /health and serves the model")


def _ready(seen: ObservedProcess, look: Look) -> Move | None:
    lost = _lost(look)
    if lost:
        return Move("unreachable", lost)
    if look.health == "ok":
        if look.full:
            return Move("ready", f"{_FULL} ({look.full}); it serves on without writing there")
        return _serving(seen) if seen.reason.startswith((_BUSY, _FULL)) else None
    return Move("ready", f"{_BUSY}: /health is slow, but its figures move") if _is_busy(look) else None


_BUSY = "busy"
_FULL = "the disk of its KV tier is full"


def _is_busy(look: Look) -> bool:
    # A long prefill may hold up /health. An error or a refused connection is no sign of work.
    return look.health == "slow" and look.sample_moves


def _lost(look: Look) -> str:
    """Why requests must not be sent there, in words; empty while they may."""
    if look.suspended:
        return look.away or "the process is suspended (SIGSTOP or a debugger)"
    if look.health == "ok" or _is_busy(look) or look.silent_s < SILENT_S:
        return ""
    return f"no answer for {look.silent_s:.1f} s: {look.error}"


def _draining(seen: ObservedProcess, look: Look) -> Move | None:
    lost = _lost(look)
    return Move("unreachable", lost) if lost else None


def _unreachable(seen: ObservedProcess, look: Look) -> Move | None:
    if look.health == "ok" and not look.suspended:
        return _serving(seen)
    return None


_LIVING = {"loading": _loading, "ready": _ready, "draining": _draining, "unreachable": _unreachable}
