"""The engine behind the endpoints: starts what was asked, wakes whoever waits for tokens, keeps the figures."""

import itertools
import os

from fleet.engine.engine import Engine, StepResult
from fleet.engine.request import Request
from fleet.simengine import tokens
from fleet.simengine.answers import Author, Wanted
from fleet.simengine.driver import Driver
from fleet.simengine.job import Ask, Job, Part
from fleet.simengine.kv_events import Publisher
from fleet.simengine.metrics import About, Metrics
from fleet.simengine.refusal import Refusal, too_long, unknown_model


class Service:
    """Belongs to the running event loop."""

    def __init__(self, engine: Engine, about: About, seed: int, publisher: Publisher | None) -> None:
        self.about = about
        self.publisher = publisher
        self.load = 0  # requests in work
        self._engine = engine
        self._author = Author(seed)
        self._metrics = Metrics(about)
        self._driver = Driver(engine, about.time_scale, self._deliver)
        self._run = os.urandom(6).hex()
        self._numbers = itertools.count()

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.about.model:
            raise unknown_model(name)

    def now_s(self) -> float:
        """Virtual seconds."""
        return self._driver.now_s()

    def start(self, ask: Ask, request_id: str, arrived_s: float) -> Job:
        """Raises Refusal; then nothing was started."""
        self.check_model(ask.model)
        job = Job(request_id, self.about.model, ask)
        for prompt in ask.prompts:
            for turn in range(ask.n):
                job.parts.append(self._part(job, prompt, turn))
        job.unfinished = len(job.parts)
        self._driver.add((part.request for part in job.parts), arrived_s)
        self.load += 1
        return job

    def finish(self, job: Job) -> None:
        """The answer is written, or nobody wants it any more."""
        self.load -= 1
        for part in job.parts:
            if not part.request.is_over and self._driver.abort(part.request):
                self._metrics.aborted()

    def new_id(self) -> str:
        return f"{self._run}{next(self._numbers):08x}"

    def reset_cache(self) -> bool:
        return self._driver.reset_cache()

    def metrics_page(self) -> bytes:
        return self._metrics.page(self._driver.stats(), self._driver.lag_s())

    def _part(self, job: Job, prompt: bytes, turn: int) -> Part:
        wanted = self._wanted(job.ask, tokens.count(prompt))
        answer = self._author.answer(prompt, wanted, salt=job.ask.seed + turn)
        data = prompt + answer.text.encode()
        request = Request(
            f"{self.new_id()}-{job.id}",
            tokens.count(prompt),
            answer.tokens,
            tokens.chain(data, self.about.block_size),
            content=data,
        )
        part = Part(job, len(job.parts), request, answer)
        request.owner = part
        return part

    def _wanted(self, ask: Ask, prompt_tokens: int) -> Wanted:
        room = self.about.window - prompt_tokens
        max_tokens = room if ask.max_tokens is None else ask.max_tokens
        if max_tokens < 1 or max_tokens > room:
            raise too_long(self.about.window, prompt_tokens, max_tokens)
        if ask.min_tokens > max_tokens:
            message = f"min_tokens must be at most max_tokens={max_tokens}, got {ask.min_tokens}."
            raise Refusal(400, message, param="min_tokens")
        return Wanted(max_tokens, ask.min_tokens, ask.ignore_eos, ask.stop)

    def _deliver(self, results: list[StepResult]) -> None:
        self._metrics.observe(results)
        for result in results:
            for request in result.finished:
                self._count(request)
            for request in result.emitted:
                job: Job = request.owner.job
                if job.ask.stream or job.is_complete:
                    job.wake()
        if self.publisher is not None:
            events = self._engine.pool.take_events()
            if events:
                self.publisher.publish(events)

    def _count(self, request: Request) -> None:
        part: Part = request.owner
        part.job.unfinished -= 1
        room = self.about.window - request.prompt_tokens
        max_tokens = part.job.ask.max_tokens or room
        self._metrics.finished(request, part.answer.reason, max_tokens=max_tokens, n=part.job.ask.n)
