"""Engines that treat each request as its plan says and record their actions."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from router.tests.engine import Engine, Received, Writer, reply, write_chunk, write_head
from router.tests.liar import plans
from router.tests.liar.plans import Plan

SPINS = 4  # loop iterations until written bytes are read
_NAMED = re.compile(rb"request (\d+) ")


@dataclass
class Attempt:
    """An engine's record of its actions on a request."""

    engine: str
    path: str
    plan: Plan
    streams: bool
    reader: asyncio.StreamReader
    counts: bool  # the request asks for usage at the end of its stream
    is_prefill: bool = False
    held: dict[str, Any] = field(default_factory=dict)  # KV location in a whole answer to this prefill
    sent: list[str] = field(default_factory=list)  # kinds of the events that were sent completely
    asks_stream: bool = True
    state: Literal["runs", "holds", "whole", "broken", "left"] = "runs"  # left: the router disconnected

    @property
    def is_held(self) -> bool:
        return self.state == "holds" and not self.reader.at_eof()

    @property
    def is_whole(self) -> bool:
        return self.state == "whole"


class PlannedEngine(Engine):
    """An engine whose `name` and `plan_of`, which returns the plan of a request by its number, are set before it
    serves."""

    name: str
    plan_of: Callable[[str, int], tuple[Plan, list[Attempt]] | None]
    answers_probes = True
    probed = 0  # probes by the router

    async def _behave(
        self, _behaviour: object, request: Received, reader: asyncio.StreamReader, writer: Writer
    ) -> None:
        if request.target == "/query":  # the engine's bootstrap server
            return await super()._behave(reply({"0": {"engine_id": "e"}}), request, reader, writer)
        number = _NAMED.search(request.body)
        planned = self.plan_of(self.name, int(number[1])) if number is not None else None
        self.probed += planned is None
        plan, attempts = planned or (plans.GOOD if self.answers_probes else Plan(end="holds", at=-1), [])
        path, document = request.target, request.document
        asked = document.get("stream") in plans.TRUE
        streams = (asked if plan.streams is None else plan.streams) and plan.status == 200
        counts = path not in plans.CHUNKED or (document.get("stream_options") or {}).get("include_usage") in plans.TRUE
        streams, half = streams and path in plans.STREAMED, (plans.is_prefill(document), plans.held(document))
        attempt = Attempt(self.name, path, plan, streams, reader, counts, *half, asks_stream=asked)
        attempts.append(attempt)

        async def follow(_engine: Engine, _request: Received, to: Writer) -> None:
            await _Answer(self, attempt, to).send()

        try:
            await super()._behave(follow, request, reader, writer)
        finally:
            attempt.state = "left" if attempt.state in ("runs", "holds") else attempt.state


class _Answer:
    def __init__(self, engine: PlannedEngine, attempt: Attempt, writer: Writer) -> None:
        self._engine, self._attempt, self._plan, self._writer = engine, attempt, attempt.plan, writer
        self._usages = iter(attempt.plan.usages)
        self._told = attempt.plan.usages[0]

    async def send(self) -> None:
        plan, attempt = self._plan, self._attempt
        parts = self._parts()
        if plan.at < 0 and not await self._goes_on():
            return
        self._head(sum(len(data) for _, data in parts))
        for place, (kind, data) in enumerate(parts):
            if place == plan.at and not await self._goes_on():
                return
            self._write(data)
            attempt.sent.append(kind)  # recorded at once: the router may end the request before the engine continues
            for _ in range(SPINS if plan.slow else 0):
                await asyncio.sleep(0)
        if plan.at >= len(parts) and plan.end in ("closes", "resets") and plan.at < 99 and not await self._goes_on():
            return
        await self._over()

    async def _over(self) -> None:
        if self._framing == "chunked":
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        self._attempt.state = "whole"
        if self._framing == "close":
            self._writer.close()

    @property
    def _framing(self) -> str:
        return self._plan.framing

    def _parts(self) -> list[tuple[str, bytes]]:
        attempt, plan = self._attempt, self._plan
        if not attempt.streams:
            body = plans.located(plans.whole(attempt.path, plan), attempt.held)
            half = len(body) // 2
            return [("half", body[:half]), ("body", body[half:])]
        blank = b"\r\n\r\n" if plan.crlf else b"\n\n"
        made = []
        for kind in plan.events:
            if kind == "usage" and not attempt.counts:
                continue
            if kind in ("usage", "begin", "end"):
                self._told = next(self._usages, self._told)
            data = plans.event(attempt.path, kind, self._told)
            made.append((kind, (data.replace(b"\n", b"\r\n") if plan.crlf else data) + blank))
        return made

    def _head(self, length: int) -> None:
        page = plans.PAGES.get(self._plan.page if self._plan.status == 200 else "")
        kind = "text/event-stream" if self._attempt.streams else page[0] if page else "application/json"
        size = {"chunked": "transfer-encoding: chunked", "length": f"content-length: {length}"}
        lines = [f"content-type: {kind}", size.get(self._framing, "connection: close")]
        write_head(self._writer, self._plan.status, *lines)

    def _write(self, data: bytes) -> None:
        size = self._plan.piece or len(data) or 1
        for start in range(0, 0 if self._writer.is_closing() else len(data), size):
            piece = data[start : start + size]
            write_chunk(self._writer, piece) if self._framing == "chunked" else self._writer.write(piece)

    async def _goes_on(self) -> bool:
        """Perform the plan at this position. Return False if the answer ends here."""
        end = self._plan.end
        await self._writer.drain()
        if end in ("holds", "stays"):
            self._attempt.state = "holds"
            await (self._engine.release.wait() if end == "holds" else asyncio.Event().wait())
            self._attempt.state = "runs"
            return True
        if end == "whole":
            return True
        self._attempt.state = "broken"
        if end == "resets":
            self._writer.transport.abort()
        else:
            self._writer.close()
        return False
