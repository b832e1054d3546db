"""The engine behind the API paths: starts requests, wakes the responses that wait for tokens, counts metrics."""

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fleet.engine.engine import Engine, StepResult
from fleet.engine.lockstep import RankSteps
from fleet.engine.request import EngineRequest
from fleet.simengine import generation
from fleet.simengine.adapters import Adapters, content_of, seed_of
from fleet.simengine.driver import Driver
from fleet.simengine.generation import SamplingParams, SimAnswer, TextGenerator
from fleet.simengine.http.errors import ApiError, asleep, bad_sleep, no_weights, too_long, unknown_model
from fleet.simengine.job import Choice, EngineJob, RequestParams
from fleet.simengine.kv.connector import Answer, Connector, TransferFailed, TransferRequest, TransferSource
from fleet.simengine.kv_events import Publisher
from fleet.simengine.metrics import EngineInfo, EngineSnapshot, Metrics

NO_TRANSFER = TransferRequest()

Connect = Callable[[Callable[[], bool], Callable[[str], None]], Connector | None]


# vLLM's sleep mode: the sleeping parts of GPU memory, and whether the weights are present. Level 1 moves the
# weights to host memory. Level 2 discards them: after waking up, the memory holds arbitrary values until the weights
# are loaded again. vLLM would then answer from these without an error; here such a request fails.
WEIGHTS, KV_CACHE = TAGS = ("weights", "kv_cache")


class SleepMode:
    def __init__(self) -> None:
        self.asleep: set[str] = set()
        self._discarded = False

    @property
    def is_sleeping(self) -> bool:
        return bool(self.asleep)

    def check(self) -> None:
        """Raise ApiError if no request can be served."""
        if self.asleep:
            raise asleep()
        if self._discarded:
            raise no_weights()

    def sleep(self, level: int) -> None:
        if level not in (1, 2):
            raise bad_sleep(f"level must be 1 or 2, not {level}")
        self.asleep = set(TAGS)
        self._discarded |= level == 2

    def wake(self, tags: Sequence[str]) -> None:
        """Wake these parts. Empty `tags` means all of them."""
        unknown = [tag for tag in tags if tag not in TAGS]
        if unknown:
            raise bad_sleep(f"tags must be of {', '.join(TAGS)}, not {unknown[0]}")
        self.asleep -= set(tags or TAGS)

    def reload_weights(self) -> None:
        if WEIGHTS in self.asleep:
            raise bad_sleep("the weights are asleep: POST /wake_up?tags=weights first", 500)
        self._discarded = False


class Service:
    """The service of one engine; it belongs to the running event loop."""

    def __init__(
        self,
        engine: Engine,
        about: EngineInfo,
        seed: int,
        publisher: Publisher | None,
        connect: Connect,
        *,
        recomputes: bool,
        adapter_slots: int = 0,
        steps: RankSteps | None = None,
        origin_s: float | None = None,
    ) -> None:
        """Create the service. For `steps` and `origin_s` see Driver."""
        self.about = about
        self.publisher = publisher
        self.load = 0  # number of requests in progress
        self.sleep_mode = SleepMode()
        self.adapters = Adapters(adapter_slots)
        self._engine = engine
        self._text = TextGenerator(seed)
        self._metrics = Metrics(about)
        self._driver = Driver(engine, about.time_scale, self._deliver, self._begin_pull, self._fail, steps, origin_s)
        self._connector = connect(self._is_busy, self._driver.release)
        self._recomputes = recomputes  # True: a prompt whose KV did not arrive is computed; False: its request fails
        self._pulls: set[asyncio.Task[None]] = set()
        self._run = os.urandom(6).hex()
        self._numbers = itertools.count()

    @property
    def connector_reads(self) -> Mapping[str, Callable[[], bytes]]:
        return self._connector.reads if self._connector is not None else {}

    @property
    def connector_writes(self) -> Mapping[str, Callable[[bytes], Answer]]:
        return self._connector.writes if self._connector is not None else {}

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.about.model and name not in self.adapters.sources:
            raise unknown_model(name)

    def now_s(self) -> float:
        """Return the virtual seconds."""
        return self._driver.now_s()

    def start(self, params: RequestParams, request_id: str, arrived_s: float) -> EngineJob:
        """Start a request. Raise ApiError, in which case nothing was started."""
        self.check_model(params.model)
        self.sleep_mode.check()
        job = EngineJob(request_id, params.model or self.about.model, params, media=self.about.media)
        for prompt in params.prompts:
            for index in range(params.n):
                job.choices.append(self._choice(job, prompt, index))
        job.unfinished = len(job.choices)
        self._driver.add((choice.request for choice in job.choices), arrived_s)
        for choice in job.choices:
            if choice.request.awaits_prefill and self._connector is not None:
                self._in_background(self._look_up(self._connector, choice))
        self.load += 1
        return job

    def finish(self, job: EngineJob) -> None:
        """Clean up after the response was sent, or the client disconnected."""
        self.load -= 1
        job.let_go()
        for choice in job.choices:
            if not choice.request.is_over and self._driver.abort(choice.request):
                self._metrics.errored() if job.failed is not None else self._metrics.aborted()
            self._decline(choice)

    async def close(self) -> None:
        for task in list(self._pulls):
            task.cancel()
        if self._connector is not None:
            await self._connector.close()

    def new_id(self) -> str:
        return f"{self._run}{next(self._numbers):08x}"

    def reset_cache(self) -> bool:
        return self._driver.reset_cache()

    def sleep(self, level: int) -> None:
        self.sleep_mode.sleep(level)
        self.reset_cache()

    def metrics_page(self) -> bytes:
        driver, asleep = self._driver, self.sleep_mode.asleep
        draws = self._engine.law.draws
        return self._metrics.page(EngineSnapshot(driver.stats(), driver.now_s(), driver.lag_s(), draws, asleep))

    def _choice(self, job: EngineJob, prompt: bytes, index: int) -> Choice:
        sampling = self._sampling(job.params, generation.count(prompt))
        answer = self._text.answer(prompt, sampling, salt=job.params.seed + index)
        transfer = self._connector.parse(job.params.kv, job.id) if self._connector is not None else NO_TRANSFER
        if transfer.first_token:
            answer, transfer = _first_token(answer, transfer)
        source = transfer.source
        adapter = job.model if job.model != self.about.model else ""
        data = prompt + answer.text.encode()
        request = EngineRequest(
            f"{self.new_id()}-{job.id}",
            generation.count(prompt),
            answer.tokens,
            generation.chain(data, self.about.block_size, seed_of(adapter, job.params.salt)),
            content=content_of(data, adapter, job.params.salt),
            held=transfer.hold_as is not None,
            pull_tokens=min(generation.count(prompt), source.most or 2**62) if source is not None else 0,
        )
        choice = Choice(job, len(job.choices), request, answer, hold_as=transfer.hold_as, source=source)
        request.owner = choice
        request.awaits_prefill = source is not None and source.asks
        return choice

    def _sampling(self, params: RequestParams, prompt_tokens: int) -> SamplingParams:
        free = self.about.window - prompt_tokens
        max_tokens = free if params.max_tokens is None else params.max_tokens
        if max_tokens < 1 or max_tokens > free:
            raise too_long(self.about.window, prompt_tokens, max_tokens)
        if params.min_tokens > max_tokens:
            message = f"min_tokens must be at most max_tokens={max_tokens}, got {params.min_tokens}."
            raise ApiError(400, message, param="min_tokens")
        return SamplingParams(max_tokens, params.min_tokens, params.ignore_eos, params.stop)

    def _deliver(self, results: list[StepResult]) -> None:
        self._metrics.observe(results)
        for result in results:
            if self._connector is not None:
                self._exchange(self._connector, result)
            for request in result.finished:
                self._count(request)
            for request in result.emitted:
                job: EngineJob = request.owner.job
                if job.params.stream or job.is_complete:
                    job.wake()
        if self.publisher is not None:
            events = self._engine.pool.take_events()
            if events:
                self.publisher.publish(events)

    def _count(self, request: EngineRequest) -> None:
        choice: Choice = request.owner
        choice.job.unfinished -= 1
        max_tokens = choice.job.params.max_tokens or self.about.window - request.prompt_tokens
        self._metrics.finished(request, choice.answer.reason, max_tokens=max_tokens, n=choice.job.params.n)

    # KV transfers

    def _fail(self, request: EngineRequest) -> None:
        """Fail a request whose KV does not fit into GPU memory while it is loaded."""
        message = f"CUDA out of memory while loading KV from storage for {request.prompt_tokens} tokens"
        self._metrics.errored()
        request.owner.job.fail(ApiError(500, message, kind="InternalServerError"))

    def _is_busy(self) -> bool:
        return self._driver.stats().running > 0

    def _exchange(self, connector: Connector, result: StepResult) -> None:
        for request in result.first:
            choice: Choice = request.owner
            self._decline(choice)
            if choice.hold_as is None:
                connector.computed(request, None)
        for request in result.finished:
            if request.held:
                request.owner.job.kv = connector.computed(request, request.owner.hold_as)

    def _decline(self, choice: Choice) -> None:
        """Tell the source of the request's KV that it will not be pulled."""
        source, choice.source = choice.source, None
        if source is not None and self._connector is not None:
            self._connector.decline(source)

    def _begin_pull(self, request: EngineRequest) -> None:
        choice: Choice = request.owner
        source, choice.source = choice.source, None
        if request.is_over or source is None or self._connector is None:
            return
        self._in_background(self._pull(self._connector, source, choice))

    def _in_background(self, pull: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(pull)
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    async def _look_up(self, connector: Connector, choice: Choice) -> None:
        source = choice.source
        try:
            if source is not None:
                await connector.lookup(source)
        except TransferFailed as error:
            choice.source = None
            choice.request.pull_tokens = 0
            if not self._lost(choice, error):
                return
        self._driver.prefilled(choice.request)

    async def _pull(self, connector: Connector, source: TransferSource, choice: Choice) -> None:
        tokens = 0
        try:
            pulled = await connector.pull(source, choice.request)
        except TransferFailed as error:
            if not self._lost(choice, error):
                return
        else:
            tokens = pulled.tokens
            if pulled.size:
                self._metrics.transferred(pulled.seconds, pulled.size)
        self._driver.pulled(choice.request, tokens)

    def _lost(self, choice: Choice, error: TransferFailed) -> bool:
        """Return whether the prompt is computed here instead, because the KV was lost."""
        self._metrics.transfer_failed()
        if not self._recomputes:
            choice.job.fail(ApiError(500, f"KV load failed: {error}", kind="InternalServerError"))
        return self._recomputes


def _first_token(answer: SimAnswer, transfer: TransferRequest) -> tuple[SimAnswer, TransferRequest]:
    """Return the first token of a context request; an answer that ends by itself with this token needs no other
    engine."""
    if answer.tokens == 1 and answer.reason == "stop" and not transfer.always:
        return answer, NO_TRANSFER
    return SimAnswer(answer.text[: generation.BYTES_PER_TOKEN], 1, "length"), transfer
