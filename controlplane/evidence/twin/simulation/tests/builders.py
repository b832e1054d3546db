"""Fleets, policies and traces for tests of the twin."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import API_S, API_S_PER_TOKEN, law_of
from fleet.engine.profiles import profile
from fleet.engine.scheduler import Limits
from router.policy.schema import document
from router.policy.types import ParsedPolicy

LAW = law_of(profile())
BLOCK = 64  # tokens, in these traces
MODEL = EngineModel(LAW, kv_blocks=25_000, limits=Limits())


def api_s(prompt_tokens: int) -> float:
    """Return the time before the engine sees a prompt."""
    return API_S + API_S_PER_TOKEN * prompt_tokens


def fleet(size: int = 2, model: EngineModel = MODEL, **changed: Any) -> TwinFleet:
    return TwinFleet({f"chat-{place}": replace(model, **changed) for place in range(size)})


def policy(strategy: str = "adaptive_v1", **changed: Any) -> ParsedPolicy:
    """Return a policy with values by path; in names, two underscores replace a dot."""
    given = {path.replace("__", "."): value for path, value in changed.items()}
    return document.parse(document.apply_overrides(document.default(strategy), given))


def asks(
    index: int,
    at_s: float = 0.0,
    *,
    tokens: int = 1_000,
    output: int = 10,
    session: str = "",
    family: int | None = None,
    shared: int = 0,
    think_s: float = 0.0,
) -> TraceRequest:
    """Return a request whose first `shared` tokens are those of every other request of its family."""
    own, common = 1_000_000 + index * 10_000, (family or 0) * 10_000
    blocks = range(common, common + shared // BLOCK), range(own, own + (tokens + BLOCK - 1) // BLOCK - shared // BLOCK)
    return TraceRequest(index, at_s, session, tokens, output, blocks, BLOCK, think_s)


def play(requests: Iterable[TraceRequest], **given: Any) -> TwinOutcome:
    """Simulate two engines under the default policy in an open loop, unless the arguments differ."""
    options = {"fleet": fleet(), "policy": policy(), "pacing": "timestamps", "seed": 1, **given}
    return simulate(options.pop("fleet"), options.pop("policy"), list(requests), **options)
