"""Engines and requests for tests."""

from fleet.engine.engine import Engine
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits

LAW = law_of(profile())


def engine(blocks: int = 1000, *, seqs: int = 256, batched: int = 8192, block_size: int = 16) -> Engine:
    limits = Limits(block_size=block_size, max_num_seqs=seqs, max_num_batched_tokens=batched)
    return Engine(LAW, blocks, limits, record_events=True)


def request(
    name: str, prompt: int, output: int, *, family: str = "", shared: int = 0, block_size: int = 16
) -> EngineRequest:
    """The first `shared` tokens are those of every other request of its family."""
    common = shared // block_size
    total = (prompt + output) // block_size
    chain = [hash((family, i)) if i < common else hash((name, i)) for i in range(total)]
    return EngineRequest(name, prompt, output, chain)
