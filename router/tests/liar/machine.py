"""Requests of several keys to good and lying engines, in any order; clients leave, and time passes."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.tests.liar import client, oracle, pages, plans
from router.tests.liar.engines import Attempt
from router.tests.liar.oracle import Asked
from router.tests.liar.plans import Plan
from router.tests.liar.stage import Stage

FAILURES = 2  # consecutive failures that open a breaker
OPEN_S = 5
LATE_S = 3
LIMIT = 4_000  # tokens of bob's budget
MOST_HELD = 4  # requests at once
POLICY = {
    "strategy": "round_robin",
    "failure__breaker_failures": FAILURES,
    "failure__breaker_open_s": float(OPEN_S),
    "failure__first_byte_timeout_s": float(LATE_S),
    "failure__stream_idle_timeout_s": float(LATE_S),
    "failure__stall_after_s": 10.0,
}
KEYS: dict[str, dict[str, Any]] = {
    "alice": {"tokens_per_min": 900_000_000},
    "bob": {"budgets": [{"id": "", "unit": "tokens", "per": "day", "limit": LIMIT}]},
    "mallory": {},  # may send poisoned requests
}
STALLED_S = 32  # longest silence of an engine with requests: its limit, confirmation and check intervals
FOUND_S = 2 * STALLED_S  # the same after an answered probe, whose silence has raised the next limit
WELL_S = 36  # longest time until a probe finds a recovered engine
DOUBTED = 3  # consecutive requests that an engine may reject
MOST_FORGIVEN = 3 * FAILURES  # failures on an engine before it serves a request
Options = tuple[object, object]  # spellings of `stream`, and of the option for usage
_SPELLINGS = st.sampled_from((*plans.TRUE, *plans.FALSE))
OPTIONS = st.tuples(_SPELLINGS, _SPELLINGS)
_OFTEN = st.one_of(plans.PLANS, plans.POISONS, plans.DEATHS)
_PATHS = st.sampled_from(plans.PATHS)
BUDGETS = itertools.count(1)


class LiarMachine(RuleBasedStateMachine):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.open: dict[int, asyncio.Task[None]] = {}
        self.numbers = itertools.count(1)

    @initialize(goods=st.integers(1, 2), liars=st.integers(1, 2))
    def begins(self, goods: int, liars: int) -> None:
        self.begin([*(f"good-{i}" for i in range(goods)), *(f"liar-{i}" for i in range(liars))])

    def begin(self, names: list[str], of_each: Mapping[str, dict[str, Any]] | None = None, **policy: object) -> None:
        """Start an engine pool; `of_each` holds further fields of each engine's entry in the fleet."""
        self.names = names
        keys = {name: dict(limits) for name, limits in KEYS.items()}
        self.budget = f"b{next(BUDGETS)}"
        self.forgiven = dict.fromkeys(self.names, 0)  # failures of poisoned requests, by engine
        self.alike = dict.fromkeys(self.names, 0)  # equal failures since the engine last served a request
        self.prefilled: set[int] = set()  # ids of attempts that ended such a count
        # Consecutive rejected requests for which no other engine was asked
        self.rejected = dict.fromkeys(self.names, 0)
        self.is_poisoned = False  # poisoned requests have failed on only one engine
        keys["bob"]["budgets"] = [{**keys["bob"]["budgets"][0], "id": self.budget}]
        self.stage.asked.clear()
        self.stage.spent = None
        self.stage.run(self.stage.begin(names, keys, of_each or {}, **POLICY | policy))
        self.stage.spent = lambda: self._spent()[0]

    # Actions

    @rule(
        path=_PATHS,
        options=OPTIONS,
        key=st.sampled_from(("alice", "bob")),
        lie=plans.PLANS,
        leaves_after=st.sampled_from((None, None, None, None, None, -1, 1, 200)),
    )
    def asks(self, path: str, options: Options, key: str, lie: Plan, leaves_after: int | None) -> None:
        """Send a good request, which engines may answer with lies."""
        self._ask(path, key, lie, options, leaves_after=leaves_after)

    @rule(path=_PATHS, options=OPTIONS, lie=plans.POISONS, times=st.sampled_from((1, 1, 2, 3, 12)))
    def poisons(self, path: str, options: Options, lie: Plan, times: int) -> None:
        for _ in range(times):
            self._ask(path, "mallory", lie, options, is_poison=True)

    @rule(path=_PATHS, options=OPTIONS, lie=_OFTEN, times=st.sampled_from((2, 3, 10)))
    def asks_often(self, path: str, options: Options, lie: Plan, times: int) -> None:
        """Send a request several times; the engine tells the same lie each time."""
        for _ in range(times):
            self._ask(path, "alice", lie, options)

    @precondition(lambda machine: machine.open)
    @rule(which=st.integers(0, MOST_HELD - 1))
    def leaves(self, which: int) -> None:
        number = sorted(self.open)[which % len(self.open)]
        self.stage.asked[number].got.has_left = True
        self.open[number].cancel()
        self.stage.run(self.stage.until(lambda: self._is_over(number), "a request has no outcome"))
        self._settle()

    @precondition(lambda machine: machine.open)
    @rule()
    def engines_go_on(self) -> None:
        for engine in self.stage.engines.values():
            engine.release.set()
        self._settle()
        for engine in self.stage.engines.values():
            engine.release = asyncio.Event()

    @rule(seconds=st.sampled_from((1, LATE_S + 1, OPEN_S, 12)))
    def time_passes(self, seconds: int) -> None:
        self.stage.run(self.stage.pass_time(seconds, self._is_quiet))
        self._collect()

    @rule(answers=st.booleans())
    def liars_answer_probes(self, answers: bool) -> None:
        for name in self.names:
            self.stage.engines[name].answers_probes = answers or name.startswith("good")

    @rule(which=st.sampled_from(("good-0", "liar-0", "liar-1")), page=st.sampled_from(pages.NAMES))
    def a_page_says(self, which: str, page: str) -> None:
        """Set the metrics page of a lying engine; a good engine's page is true."""
        if which in self.names:
            self.stage.pages[which] = "true" if which.startswith("good") else page

    def hangs(
        self, page: str, path: str, lie: Plan = plans.HANGS, *, streams: object = None, answers_probes: bool = False
    ) -> None:
        """Let an engine hold every request, and let the router notice it."""
        self.a_page_says("liar-0", page)
        self.liars_answer_probes(answers=answers_probes)
        endpoint = self.stage.here.endpoints["liar-0"]
        for _ in range(FOUND_S // (LATE_S + 1)):
            if endpoint.progress.stalled or endpoint.breaker.opened_at is not None:
                break
            tried = len(self.names)
            while tried and not self._holds("liar-0"):
                self._ask(path, "alice", lie, (streams, None))
                tried -= 1
            self.time_passes(LATE_S + 1)
        assert endpoint.progress.stalled or endpoint.breaker.opened_at is not None, f"it hangs, and its page is {page}"

    def is_well_again(self) -> None:
        self.liars_answer_probes(answers=True)
        self.engines_go_on()
        for _ in range(WELL_S // 12):
            self.time_passes(12)
        endpoint = self.stage.here.endpoints["liar-0"]
        assert not endpoint.refusal(self.stage.time(), OPEN_S), "it is well, and gets no requests"
        for _ in self.names:
            self._ask(plans.COMPLETIONS, "alice", plans.GOOD, (None, None))
        self.time_passes(1)
        assert not endpoint.progress.stalled, "it is well, and still stalled"

    def _holds(self, name: str) -> bool:
        attempts = (attempt for number in self.open for attempt in self.stage.asked[number].attempts)
        return any(attempt.engine == name and attempt.is_held for attempt in attempts)

    def _ask(
        self,
        path: str,
        key: str,
        lie: Plan,
        options: Options,
        *,
        leaves_after: int | None = None,
        is_poison: bool = False,
    ) -> None:
        if len(self.open) >= MOST_HELD:
            return
        number = next(self.numbers)
        document = _document(path, number, *options)
        asked = Asked(number, path, document, key, lie, is_poison)
        self.stage.asked[number] = asked
        headers = {"authorization": f"Bearer {self.stage.keys[key]}", "x-request-id": f"req-{number}"}
        headers["x-weir-pool"] = self.stage.pool
        sending = client.ask(self.stage.port, path, document, asked.got, leaves_after, **headers)
        self.open[number] = self.stage.run(_started(sending))
        self._settle()

    def _settle(self) -> None:
        self.stage.run(self.stage.settle(self._is_quiet))
        self._collect()

    def _is_quiet(self) -> bool:
        """Return whether each request has ended or is held by an engine."""
        return all(self._is_over(number) or self._is_held(number) for number in self.open)

    def _is_over(self, number: int) -> bool:
        asked = self.stage.asked[number]
        return self.open[number].done() and bool(asked.outcomes)

    def _is_held(self, number: int) -> bool:
        return any(attempt.is_held for attempt in self.stage.asked[number].attempts)

    def _collect(self) -> None:
        for number in [number for number in self.open if self._is_over(number)]:
            task = self.open.pop(number)
            if not task.cancelled():
                task.result()
            self.judge(self.stage.asked[number])

    def judge(self, asked: Asked) -> None:
        oracle.judge(asked)
        if asked.charged is not None:
            oracle.judge_charge(asked)
        why = oracle.hurts(asked, may_ask=not self.is_poisoned)
        assert not why, f"request {asked.number} of {asked.key}, on {self.tried(asked)}: {why}"
        self._judge_rejection(asked)
        self.judge_poison(asked)

    def _judge_rejection(self, asked: Asked) -> None:
        """Check that an engine that rejects one request after another is not believed."""
        last = asked.attempts[-1] if asked.attempts else None
        if last is None or asked.is_poison:
            return
        if asked.outcomes[0]["result"] == "served":
            self.rejected[last.engine] = 0
        elif last.plan.status in (400, 413) and last.is_whole and len(asked.attempts) == 1:
            assert self.is_poisoned or self.rejected[last.engine] < DOUBTED, f"{last.engine} is believed too often"
            self.rejected[last.engine] += 1

    def judge_poison(self, asked: Asked, *, may_be_one: bool = False) -> None:
        """Check that equal failures on two engines do not count as their fault while they serve other requests.
        `may_be_one`: one engine may have made the others fail.
        """
        self._note_prefills()
        engines = {attempt.engine for attempt in asked.attempts}
        result = asked.outcomes[0]["result"]
        few = all(self.forgiven[name] < MOST_FORGIVEN for name in engines)
        if asked.is_poison:
            if len(engines) > 1 and few and not may_be_one:
                assert result in (oracle.ALIKE, oracle.CLIENTS), f"{result}, though it failed on {self.tried(asked)}"
            self.is_poisoned = self.is_poisoned or result == oracle.BEFORE or not few
        for name in engines:
            self.forgiven[name] += result != "served"
            self.alike[name] += result == oracle.ALIKE
            assert self.alike[name] <= MOST_FORGIVEN, f"{name} serves nobody, and is forgiven"
        serving = asked.attempts[-1:] if result == "served" else []
        serving += [one for one in asked.attempts if _is_prefilled(one) and id(one) not in self.prefilled]
        self.alike |= {one.engine: 0 for one in serving}

    def _note_prefills(self) -> None:
        """Note that an engine which has computed a prompt serves, even if the other half is still running."""
        found = [one for number in self.open for one in self.stage.asked[number].attempts if _is_prefilled(one)]
        self.alike |= {one.engine: 0 for one in found if id(one) not in self.prefilled}
        self.prefilled.update(map(id, found))

    def tried(self, asked: Asked) -> str:
        """Describe each engine's actions and the router's answer."""
        did = [f"{one.engine} ({one.plan}, {one.state}, sent {one.sent})" for one in asked.attempts]
        return f"{', '.join(did) or 'none'}; outcome: {asked.outcomes[0]['attempts'] if asked.outcomes else 'none'}"

    # Promises

    @invariant()
    def good_engines_take_requests(self) -> None:
        """Check that good engines accept requests, except for at most one breaker that poisoned requests opened."""
        if not hasattr(self, "names"):
            return
        now = self.stage.time()
        refusals = {name: endpoint.refusal(now, OPEN_S) for name, endpoint in self.stage.here.endpoints.items()}
        out = [name for name, why in refusals.items() if why and name.startswith("good")]
        assert not out or (self.is_poisoned and len(out) == 1 and "" in refusals.values()), refusals

    @invariant()
    def the_budget_is_kept(self) -> None:
        if not hasattr(self, "budget"):
            return
        spent, reserved = self._spent()
        assert spent + reserved <= LIMIT, f"{spent} spent and {reserved} reserved of {LIMIT}"

    def _spent(self) -> tuple[int, int]:
        ring = self.stage.router.pools.auth.ring
        assert ring is not None
        held = next(key for key in ring.by_hash.values() if key.name.startswith("bob"))
        spending = self.stage.router.pools.auth.budgets.of(held.budgets[0], time.time())
        return spending.spent, spending.reserved

    def teardown(self) -> None:
        """Check that everything has been released once nothing runs."""
        if not hasattr(self, "names"):
            return
        for number in list(self.open):
            self.stage.asked[number].got.has_left = True
            self.open[number].cancel()
        self.stage.run(self.stage.until(lambda: all(map(self._is_over, self.open)), "a request has no outcome"))
        self._collect()
        router, pool = self.stage.router, self.stage.here
        self.stage.run(self.stage.until(lambda: not self.stage.server.tasks, "a task of a request is left"))
        for name, endpoint in pool.endpoints.items():
            left = (endpoint.requests, endpoint.decodes, endpoint.prefill_tokens, endpoint.pulls, endpoint.unheld)
            assert left == (0, 0, 0, 0, 0), f"{name} keeps {left}"
            assert not endpoint.prefilling
            assert endpoint.breaker.state != "half open", name
        assert self._spent()[1] == 0, "a budget stays reserved"
        assert (len(pool.queue), pool.wakes.waiting_bytes, router.proxy.stalls._limits) == (0, 0, {})


def _is_prefilled(attempt: Attempt) -> bool:
    return attempt.is_prefill and "served" in oracle.results(attempt)


def _document(path: str, number: int, streams: object, counts: object) -> dict[str, Any]:
    text = f"request {number} says hello"
    chat = [{"role": "user", "content": text}]
    of: dict[str, dict[str, Any]] = {
        plans.CHAT: {"messages": chat},
        plans.COMPLETIONS: {"prompt": text},
        plans.MESSAGES: {"messages": chat, "max_tokens": 500},
        plans.RESPONSES: {"input": text},
        plans.EMBEDDINGS: {"input": text},
        plans.RERANK: {"query": text, "documents": ["a"]},
    }
    document = {"model": "llama", **of[path]}
    if streams is not None and path in plans.STREAMED:
        document["stream"] = streams
    if counts is not None and path in plans.CHUNKED:
        document["stream_options"] = {"include_usage": counts}
    return document


async def _started(sending: Any) -> "asyncio.Task[None]":
    return asyncio.ensure_future(sending)
