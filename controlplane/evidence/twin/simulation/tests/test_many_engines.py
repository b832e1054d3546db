"""The cost of a request in the twin of a large fleet."""

import cProfile
import pstats
import random

from controlplane.evidence.twin.simulation.simulate import Simulation
from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, policy

REQUESTS, SHARED = 800, 1_024
MOST = 1.4  # times the calls of a fleet of eight


def calls(engines: int) -> int:
    """Count the calls of functions while requests are played that begin alike, as conversations do."""
    draw = random.Random(1)
    requests = [
        asks(index, index / 8, tokens=draw.randrange(2_000, 16_000), output=50, family=0, shared=SHARED)
        for index in range(REQUESTS)
    ]
    simulation = Simulation(fleet(engines), policy("priced"), requests, None, "timestamps", 1)
    profile = cProfile.Profile()
    profile.enable()
    outcome = simulation.outcome()
    profile.disable()
    assert len(outcome.requests) == REQUESTS
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_thousand_engines_take_at_most_two_fifths_more_calls_than_eight() -> None:
    assert calls(1_000) <= MOST * calls(8)
