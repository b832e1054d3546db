"""Demo traffic: an endless series of agentic sessions through a router, in a closed loop with think times."""

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import orjson
import uvloop

from controlplane.evidence.experiments.replay import completions
from controlplane.evidence.experiments.replay.client import NoAnswer, ReplayClient
from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.traces.generated import BLOCK_TOKENS, Turn, session_turns
from controlplane.evidence.traces.types import TraceRequest

SESSIONS = 48
FIRST_STARTS_S = 1.5  # interval between the first sessions, so that requests of every class occur within seconds
AWAY_S = 2.0  # pause before the next attempt if the router does not answer


@dataclass(slots=True)
class Demo:
    """The traffic of one process."""

    client: ReplayClient
    model: str  # model to request; empty: the first model listed by the router
    seed: int
    numbers: Iterator[int] = field(default_factory=count)  # session numbers, in order of start
    sent: int = 0
    answered: int = 0
    first: str = ""  # the first model listed by the router, once known
    trouble: str = ""  # the last trouble reported, so that an outage takes only one line


async def run(url: str, sessions: int = SESSIONS, seed: int = 1, model: str = "") -> None:
    """Keep `sessions` sessions going until cancelled."""
    demo = Demo(ReplayClient(url), model, seed)
    async with asyncio.TaskGroup() as tasks:
        for slot in range(sessions):
            tasks.create_task(_sessions_in_turn(demo, slot))


async def _sessions_in_turn(demo: Demo, slot: int) -> None:
    """Run sessions one after another, with pauses in between."""
    await asyncio.sleep(slot * FIRST_STARTS_S)
    pause = random.Random(f"{demo.seed}:pause:{slot}")  # noqa: S311 - traffic, not secrets
    while True:
        number = next(demo.numbers)
        for index, turn in enumerate(session_turns(demo.seed, number)):
            await asyncio.sleep(turn.think_s)
            await _ask(demo, number, index, turn)
        await asyncio.sleep(pause.uniform(3, 12))


async def _ask(demo: Demo, number: int, index: int, turn: Turn) -> None:
    """Send one turn, and repeat it while no instance accepts it."""
    session = f"agent-{demo.seed}-{number}"
    request = TraceRequest(
        index, 0.0, session, turn.input_tokens, turn.output_tokens, turn.blocks, BLOCK_TOKENS, turn.think_s
    )
    prompt = PromptWriter(salt=f"demo{demo.seed}:").write(request)
    while True:
        trouble = await _send(demo, session, prompt, turn.output_tokens)
        if not trouble:
            return
        await asyncio.sleep(AWAY_S)


async def _send(demo: Demo, session: str, prompt: str, output_tokens: int) -> str:
    """Send the request once. Return why it must be sent again, or an empty text if it was answered."""
    try:
        model = demo.model or demo.first or await first_model(demo.client)
        demo.first = demo.first or model
        demo.sent += 1
        body = completions.body_of(model, prompt, output_tokens)
        answer = await demo.client.request("POST", completions.PATH, body, {"x-session-id": session})
    except (NoAnswer, TimeoutError) as error:
        return _tell(demo, str(error) or "no answer in time")
    ending = completions.ending_of(answer)
    if ending.outcome == "ok":
        demo.answered += 1
        _tell(demo, "")
        return ""
    if answer.status == 404:
        demo.first = ""
    # A bad request (400) is never sent again; other failures may be over by the next attempt.
    return _tell(demo, ending.error) if answer.status != 400 else ""


async def first_model(client: ReplayClient) -> str:
    """Return the first model listed by the router. Raise NoAnswer if it lists none."""
    answer = await client.request("GET", "/v1/models", keep=1 << 16, timeout_s=10)
    with contextlib.suppress(orjson.JSONDecodeError, LookupError, TypeError):
        return str(orjson.loads(bytes(answer.tail))["data"][0]["id"])
    raise NoAnswer(f"no model yet (status {answer.status} from /v1/models)")


def _tell(demo: Demo, trouble: str) -> str:
    """Print a change between working and failing once. Return `trouble`."""
    if bool(trouble) != bool(demo.trouble):
        print(f"demo traffic: {'waiting: ' + trouble if trouble else 'flowing'}", flush=True)
    demo.trouble = trouble
    return trouble


def main(url: str, sessions: int, seed: int, model: str = "") -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""

    async def until_stopped() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(run(url, sessions, seed, model))
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    uvloop.run(until_stopped())
    sys.stdout.flush()
    return 0


# `manage.py up` starts this module instead of `manage.py demo_traffic`, because it takes 30 MB less without Django.
if __name__ == "__main__":
    sys.exit(main(sys.argv[1], SESSIONS, seed=1, model=sys.argv[2]))
