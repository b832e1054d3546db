"""Requests by formula: sessions of a few or many turns, loads that change, and long tails."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.canary.cells import limits_of
from controlplane.evidence.previews.analysis.tallies import EndedRequest, arm_and_cell
from controlplane.traffic.deliveries.judge.statistics.slow import Limits

HOUR_S = 3600.0
MINUTE_S = 60
NEW = {"warm": 0.42, "medium": 0.40, "heavy": 0.18}  # classes of a session's first request
NEXT = {"warm": 0.80, "medium": 0.15, "heavy": 0.05}  # classes of a session's later requests
TTFT = {"warm": (0.6, 0.55, 0.45), "medium": (-3.2, 1.0, 0.25), "heavy": (-4.1, 1.1, 0.30)}  # level, slope, spread
LONG = {"warm": 9.2, "medium": 8.9, "heavy": 10.4}  # median of ln prompt tokens


@dataclass(frozen=True)
class Traffic:
    turns: float  # mean turns per session
    requests: int = 12_000  # requests per hour
    gap_s: float = 40.0  # mean time between turns
    between: float = 0.25  # spread of ln TTFT between sessions
    load: float = 0.30  # spread of ln TTFT over time, common to both arms
    tail: float = 0.03  # share of the requests that take much longer
    errors: float = 0.004
    refused: float = 0.004
    ttft_factor: float = 1.0  # factor on the TTFT of the candidate's heavy requests
    hours: int = 1


def requests(traffic: Traffic, share: float, seed: int) -> list[EndedRequest]:
    """Return the requests in the order in which they end."""
    draw = random.Random(seed)
    level = _load(traffic, draw)
    made: list[EndedRequest] = []
    lasts = traffic.turns * traffic.gap_s
    sessions = traffic.requests / traffic.turns * (traffic.hours + lasts / HOUR_S)
    for number in range(round(sessions)):
        at = draw.uniform(-lasts, traffic.hours * HOUR_S)
        made += _session(traffic, share, f"{seed}-{number}", level, draw, at)
    return sorted(made, key=lambda one: one.at_s)


def _load(traffic: Traffic, draw: random.Random) -> list[float]:
    """Return waves of load by the minute, which affect both arms."""
    found, now = [], 0.0
    for _ in range(60 * traffic.hours):
        now = 0.85 * now + draw.gauss(0, traffic.load * math.sqrt(1 - 0.85**2))
        found.append(now)
    return found


def _session(
    traffic: Traffic, share: float, key: str, level: list[float], draw: random.Random, at: float
) -> Iterator[EndedRequest]:
    candidate, cell = arm_and_cell("bench", key, share)
    effect, length = draw.gauss(0, traffic.between), draw.gauss(0, 0.4)
    turns = 1 + (int(math.log(draw.random()) / math.log(1 - 1 / traffic.turns)) if traffic.turns > 1 else 0)
    troubled = draw.random() < 0.1  # sessions whose requests fail or are refused repeatedly
    for turn in range(turns):
        if turn:
            at += draw.expovariate(1 / traffic.gap_s)
        mix = NEXT if turn else NEW
        name = draw.choices(list(mix), list(mix.values()))[0]
        if at >= len(level) * MINUTE_S:
            return
        if at < 0:
            continue
        x = LONG[name] + length + draw.gauss(0, 0.35)
        base, slope, spread = TTFT[name]
        y = base + slope * x + effect + level[int(at // MINUTE_S)] + draw.gauss(0, spread)
        if draw.random() < traffic.tail:
            y += draw.expovariate(1.0)
        if candidate and name == "heavy":
            y += math.log(traffic.ttft_factor)
        ttft, tpot = math.exp(y), math.exp(2.5 + 0.5 * effect + draw.gauss(0, 0.2))
        one = EndedRequest(at + ttft / 1000, candidate, cell, key, name, round(math.exp(x)), ttft, tpot)
        yield _ended(one, traffic, troubled, draw)


def _ended(one: EndedRequest, traffic: Traffic, troubled: bool, draw: random.Random) -> EndedRequest:
    lot, times = draw.random(), 10 if troubled else 0
    if lot < times * traffic.errors:
        return replace(one, outcome="error", ttft_ms=None, tpot_ms=None)
    if lot < times * (traffic.errors + traffic.refused):
        return replace(one, outcome="refused", ttft_ms=None, tpot_ms=None)
    return one


def limits(traffic: Traffic) -> Limits:
    """Return the limits as the judge takes them at the start of a delivery, from live's last 5,000 receipts."""
    return limits_of(requests(replace(traffic, ttft_factor=1.0, hours=1), 0.0, 0)[-5_000:])
