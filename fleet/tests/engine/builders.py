"""Engines and requests for tests."""

from fleet.engine.engine import Engine
from fleet.engine.law import API_S, API_S_PER_TOKEN, law_of
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.model import TiersModel

LAW = law_of(profile())


def api_s(prompt_tokens: int) -> float:
    """Return the time before the engine sees a prompt."""
    return API_S + API_S_PER_TOKEN * prompt_tokens


def engine(
    blocks: int = 1000,
    *,
    seqs: int = 256,
    batched: int = 8192,
    block_size: int = 16,
    ahead: bool = True,
    tiers: TiersModel | None = None,
) -> Engine:
    limits = Limits(block_size, seqs, batched, async_scheduling=ahead)
    return Engine(LAW, blocks, limits, record_events=True, tiers=tiers)


def request(
    name: str, prompt: int, output: int, *, family: str = "", shared: int = 0, block_size: int = 16
) -> EngineRequest:
    """Make a request whose first `shared` tokens are those of every other request of its family."""
    common = shared // block_size
    total = (prompt + output) // block_size
    chain = [hash((family, i)) if i < common else hash((name, i)) for i in range(total)]
    return EngineRequest(name, prompt, output, chain)
