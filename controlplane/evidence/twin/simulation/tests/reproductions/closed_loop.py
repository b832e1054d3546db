"""Clients of one engine, each with one request at a time, as in benchmarks of engines."""

from dataclasses import dataclass

from fleet.engine.engine import Engine
from fleet.engine.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Measured:
    ttft_s: float  # mean
    tpot_s: float  # mean


def measure(engine: Engine, clients: int, prompt: int, output: int, first_answer_s: float) -> Measured:
    """Measure two answers per client after its first. The clients begin one after the other, within the time of the
    first answer, so that prefills and decodes are mixed as in the long run."""
    begins = [client * first_answer_s / clients for client in range(clients)]
    over: list[EngineRequest] = []
    sent = 0
    while len(over) < 3 * clients:
        turn_s = engine.next_turn_s()
        if turn_s is None or (begins and begins[0] <= turn_s):
            engine.add_request(fresh(sent, prompt, output, engine.limits.block_size), begins.pop(0))
            sent += 1
            continue
        result = engine.turn(turn_s)
        for request in result.finished if result else ():
            over.append(request)
            engine.add_request(fresh(sent, prompt, output, engine.limits.block_size), engine.clock_s)
            sent += 1
    steady = over[clients:]
    return Measured(
        sum(request.first_token_s - request.arrived_s for request in steady) / len(steady),
        sum(tpot_s(request) for request in steady) / len(steady),
    )


def tpot_s(request: EngineRequest) -> float:
    return (request.finished_s - request.first_token_s) / (request.output_tokens - 1)


def fresh(number: int, prompt: int, output: int, block_size: int) -> EngineRequest:
    """A request with a prompt that no other one shares."""
    first = number << 24
    return EngineRequest(str(number), prompt, output, range(first, first + (prompt + output) // block_size))
