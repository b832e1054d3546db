"""The engine behind the endpoints: starts what was asked, wakes whoever waits for tokens, keeps the figures."""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from fleet.engine.engine import Engine, StepResult
from fleet.engine.request import EngineRequest
from fleet.simengine import tokens
from fleet.simengine.answers import Author, Wanted
from fleet.simengine.driver import Driver
from fleet.simengine.http.refusal import ApiError, asleep, too_long, unknown_model
from fleet.simengine.job import Ask, Choice, EngineJob
from fleet.simengine.kv.connector import Answer, Connector, TransferFailed, TransferRequest, TransferSource
from fleet.simengine.kv_events import Publisher
from fleet.simengine.metrics import EngineInfo, Metrics

NO_TRANSFER = TransferRequest()

Connect = Callable[[Callable[[], bool], Callable[[str], None]], Connector | None]


class Service:
    """Belongs to the running event loop."""

    def __init__(
        self,
        engine: Engine,
        about: EngineInfo,
        seed: int,
        publisher: Publisher | None,
        connect: Connect,
        *,
        recomputes: bool,
    ) -> None:
        self.about = about
        self.publisher = publisher
        self.load = 0  # requests in work
        self.sleeps = False  # its KV cache is gone, and it computes nothing
        self._engine = engine
        self._author = Author(seed)
        self._metrics = Metrics(about)
        self._driver = Driver(engine, about.time_scale, self._deliver, self._begin_pull)
        self._connector = connect(self._is_busy, self._driver.release)
        self._recomputes = recomputes  # a prompt whose KV did not come; else its request fails
        self._pulls: set[asyncio.Task[None]] = set()
        self._run = os.urandom(6).hex()
        self._numbers = itertools.count()

    @property
    def connector_reads(self) -> Mapping[str, Callable[[], dict[str, Any]]]:
        return self._connector.reads if self._connector is not None else {}

    @property
    def connector_writes(self) -> Mapping[str, Callable[[dict[str, Any]], Answer]]:
        return self._connector.writes if self._connector is not None else {}

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.about.model:
            raise unknown_model(name)

    def now_s(self) -> float:
        """Virtual seconds."""
        return self._driver.now_s()

    def start(self, ask: Ask, request_id: str, arrived_s: float) -> EngineJob:
        """Raises Refusal; then nothing was started."""
        self.check_model(ask.model)
        if self.sleeps:
            raise asleep()
        job = EngineJob(request_id, self.about.model, ask)
        for prompt in ask.prompts:
            for turn in range(ask.n):
                job.parts.append(self._part(job, prompt, turn))
        job.unfinished = len(job.parts)
        self._driver.add((part.request for part in job.parts), arrived_s)
        self.load += 1
        return job

    def finish(self, job: EngineJob) -> None:
        """The answer is written, or nobody wants it any more."""
        self.load -= 1
        for part in job.parts:
            if not part.request.is_over and self._driver.abort(part.request):
                self._metrics.errored() if job.failed is not None else self._metrics.aborted()
            self._decline(part)

    async def close(self) -> None:
        for task in list(self._pulls):
            task.cancel()
        if self._connector is not None:
            await self._connector.close()

    def new_id(self) -> str:
        return f"{self._run}{next(self._numbers):08x}"

    def reset_cache(self) -> bool:
        return self._driver.reset_cache()

    def sleep(self) -> bytes:
        self.reset_cache()
        self.sleeps = True
        return b""

    def wake(self) -> bytes:
        self.sleeps = False
        return b""

    def metrics_page(self) -> bytes:
        return self._metrics.page(self._driver.stats(), self._driver.lag_s())

    def _part(self, job: EngineJob, prompt: bytes, turn: int) -> Choice:
        wanted = self._wanted(job.ask, tokens.count(prompt))
        answer = self._author.answer(prompt, wanted, salt=job.ask.seed + turn)
        data = prompt + answer.text.encode()
        transfer = self._connector.parse(job.ask.kv, job.id) if self._connector is not None else NO_TRANSFER
        request = EngineRequest(
            f"{self.new_id()}-{job.id}",
            tokens.count(prompt),
            answer.tokens,
            tokens.chain(data, self.about.block_size),
            content=data,
            held=transfer.hold_as is not None,
            pull_tokens=tokens.count(prompt) if transfer.source is not None else 0,
        )
        part = Choice(job, len(job.parts), request, answer, hold_as=transfer.hold_as, source=transfer.source)
        request.owner = part
        return part

    def _wanted(self, ask: Ask, prompt_tokens: int) -> Wanted:
        room = self.about.window - prompt_tokens
        max_tokens = room if ask.max_tokens is None else ask.max_tokens
        if max_tokens < 1 or max_tokens > room:
            raise too_long(self.about.window, prompt_tokens, max_tokens)
        if ask.min_tokens > max_tokens:
            message = f"min_tokens must be at most max_tokens={max_tokens}, got {ask.min_tokens}."
            raise ApiError(400, message, param="min_tokens")
        return Wanted(max_tokens, ask.min_tokens, ask.ignore_eos, ask.stop)

    def _deliver(self, results: list[StepResult]) -> None:
        self._metrics.observe(results)
        for result in results:
            if self._connector is not None:
                self._exchange(self._connector, result)
            for request in result.finished:
                self._count(request)
            for request in result.emitted:
                job: EngineJob = request.owner.job
                if job.ask.stream or job.is_complete:
                    job.wake()
        if self.publisher is not None:
            events = self._engine.pool.take_events()
            if events:
                self.publisher.publish(events)

    def _count(self, request: EngineRequest) -> None:
        part: Choice = request.owner
        part.job.unfinished -= 1
        room = self.about.window - request.prompt_tokens
        max_tokens = part.job.ask.max_tokens or room
        self._metrics.finished(request, part.answer.reason, max_tokens=max_tokens, n=part.job.ask.n)

    # KV from and for other engines

    def _is_busy(self) -> bool:
        return self._driver.stats().running > 0

    def _exchange(self, connector: Connector, result: StepResult) -> None:
        for request in result.first:
            part: Choice = request.owner
            self._decline(part)
            if part.hold_as is None:
                connector.computed(request, None)
        for request in result.finished:
            if request.held:
                request.owner.job.kv = connector.computed(request, request.owner.hold_as)

    def _decline(self, part: Choice) -> None:
        """Tell the source that its KV will not be pulled."""
        source, part.source = part.source, None
        if source is not None and self._connector is not None:
            self._connector.decline(source)

    def _begin_pull(self, request: EngineRequest) -> None:
        part: Choice = request.owner
        source, part.source = part.source, None
        if request.is_over or source is None or self._connector is None:
            return
        task = asyncio.get_running_loop().create_task(self._pull(self._connector, source, part))
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    async def _pull(self, connector: Connector, source: TransferSource, part: Choice) -> None:
        tokens = 0
        try:
            pulled = await connector.pull(source, part.request)
        except TransferFailed as error:
            self._metrics.transfer_failed()
            if not self._recomputes:
                part.job.fail(ApiError(500, f"KV load failed: {error}", kind="InternalServerError"))
                return
        else:
            tokens = pulled.tokens
            if pulled.size:
                self._metrics.transferred(pulled.seconds, pulled.size)
        self._driver.pulled(part.request, tokens)
