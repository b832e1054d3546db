"""One client sends every kind of wrongly predicted request beside ordinary chats, whose predictions stay exact.

WEIR_TEST_UNPREDICTABLE_S=600 runs it for ten minutes (.venv/bin/python -m pytest -n 0 -m slow, and this file).
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from router.prefix.accuracy import FEWEST
from router.prefix.accuracy_by_kind import MOST_KINDS
from router.prefix.belief import EXACT_LIMIT
from router.prefix.request_kind import kind_of
from router.tests.conftest import Published, running
from router.tests.kv_events.conftest import Sim, quick, start_sim
from router.tests.test_exact_index import belief, receipt, sim_entry, until
from router.tokenize import Prompt, prompt
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import NotTokenized

__all__ = ["quick", "start_sim"]
pytestmark = pytest.mark.usefixtures("quick")

SECONDS = float(os.environ.get("WEIR_TEST_UNPREDICTABLE_S", "10"))
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
SENTENCES = "sixteen tokens of four bytes each, so one block holds 64 bytes. " * 8  # 8 blocks
HI: list[dict[str, Any]] = [{"role": "user", "content": SENTENCES}]
CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "read", "parameters": {}}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "probabilities of the prompt": (TEXT, {"prompt": SENTENCES, "prompt_logprobs": 1}),
    "echo": (TEXT, {"prompt": SENTENCES, "echo": True, "logprobs": 1}),
    "a prompt cut short": (TEXT, {"prompt": SENTENCES, "truncate_prompt_tokens": 7}),
    "no special tokens": (TEXT, {"prompt": SENTENCES, "add_special_tokens": False}),
    "a suffix": (TEXT, {"prompt": SENTENCES, "suffix": "end"}),
    "several prompts": (TEXT, {"prompt": [SENTENCES, SENTENCES]}),
    "a template of its own": (CHAT, {"messages": HI, "chat_template": "{{ messages }}"}),
    "arguments of the template": (CHAT, {"messages": HI, "chat_template_kwargs": {"custom": 1}}),
    "an answer to be continued": (CHAT, {"messages": HI, "continue_final_message": True}),
    "no generation prompt": (CHAT, {"messages": HI, "add_generation_prompt": False}),
    "documents": (CHAT, {"messages": HI, "documents": [{"text": "x"}]}),
    "a salt": (CHAT, {"messages": HI, "cache_salt": "mine"}),
    "effort": (CHAT, {"messages": HI, "reasoning_effort": "high"}),
    "tools": (CHAT, {"messages": HI, "tools": [TOOL]}),
    "thoughts": (CHAT, {"messages": [*HI, {"role": "assistant", "content": "a", "reasoning": "hm"}, *HI]}),
    "a tool loop": (CHAT, {"messages": [*HI, {"role": "assistant", "content": "", "tool_calls": [CALL]}, *HI]}),
    "a result": (CHAT, {"messages": [*HI, {"role": "tool", "tool_call_id": "c", "content": "42"}]}),
    "a name": (CHAT, {"messages": [{**HI[0], "name": "ann"}]}),
    "a refusal": (CHAT, {"messages": [*HI, {"role": "assistant", "content": "a", "refusal": "no"}, *HI]}),
    "an image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}),
    "thinking": (MESSAGES, {"messages": HI, "thinking": {"type": "adaptive"}}),
    "a reasoning item": (RESPONSES, {"input": [*HI, {"type": "reasoning", "summary": []}]}),
}
_ALSO = ("tools", "documents", "suffix", "truncation", "thinking", "reasoning")
for names in itertools.combinations(_ALSO, 3):
    KINDS[" and ".join(names)] = CHAT, {"messages": HI, **dict.fromkeys(names)}
HELD: dict[str, Any] = {"messages": [{"role": "user", "content": SENTENCES * 2}]}
SHORTER = {"role": "user", "content": (SENTENCES * 2)[:-64] + "others" * 20, "name": "ann"}
KINDS["a hit that is a block shorter than predicted"] = CHAT, {"messages": [SHORTER]}


class Misreads(SimTokenizer):
    """A renderer that agrees with the engine on ordinary chats and fails on all else: it renders a cached chat,
    an uncached one, or nothing.
    """

    def __init__(self) -> None:
        self.held = super().tokens(prompt.read(orjson.dumps(HELD), CHAT), CHAT)

    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        if kind_of(api_path, prompt.document) == CHAT:
            return super().tokens(prompt, api_path)
        way = int(str(prompt.document["seed"])) % 4
        if way == 0:
            raise NotTokenized("not read")
        return os.urandom(len(self.held)) if way == 1 else self.held


class Clients:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.statuses: Counter[int] = Counter()
        self.over = False

    async def ask(self, path: str, body: dict[str, Any]) -> str:
        answer = await self.client.post(path, json={"model": "llama", "max_tokens": 1, **body})
        self.statuses[answer.status_code] += 1
        return str(answer.headers["x-request-id"])

    async def each_kind(self, times: int) -> None:
        """Send requests of each kind this many times in sequence."""
        for turn, (path, body) in enumerate(itertools.cycle(KINDS.values())):
            for again in range(times):
                if self.over:
                    return
                await self.ask(path, {**body, "seed": turn // len(KINDS) if times == 1 else again})

    async def ordinary(self, published: Published) -> list[dict[str, Any]]:
        """Hold conversations of twenty turns; return their receipts."""
        receipts: list[dict[str, Any]] = []
        ends, said = time.monotonic() + SECONDS, list[dict[str, str]]()
        while time.monotonic() < ends or len(receipts) < 2 * FEWEST:
            said = said if len(said) < 20 else []
            said = [*said, {"role": "user", "content": f"turn {len(receipts)}: {SENTENCES}"}]
            receipts.append(await receipt(published, await self.ask(CHAT, {"messages": said})))
            await asyncio.sleep(0.02)
        self.over = True
        return receipts


@pytest.mark.slow
async def test_ordinary_chats_stay_exact_beside_every_kind_that_is_wrongly_predicted(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        pool.kv_event_state.reader, clients = Misreads(), Clients(client)
        await clients.ask(CHAT, HELD)
        others = [asyncio.create_task(clients.each_kind(times)) for times in (1, 2 * FEWEST)]
        made = await clients.ordinary(published)
        await asyncio.gather(*others)
        predicted = [(each["index"], each["predicted_cached"]) for each in made]
        assert predicted == [("exact", each["cached_tokens"]) for each in made]
        assert sum(each["cached_tokens"] > 0 for each in made) > 0.9 * len(made)
        assert clients.statuses.keys() == {200}
        known = pool.endpoints["demo-0"].by_kind.kinds
        assert len(KINDS) > MOST_KINDS
        assert max(one.exact.recent_error() or 0 for one in known.values()) > EXACT_LIMIT
