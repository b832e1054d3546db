"""Concurrent conversations of several turns with the fleet, and the predictions for each request."""

import json
import random
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from controlplane.tests.engines.fleet import PATIENCE_S, Fleet

WORKERS = 6
WORDS = (
    "river",
    "weir",
    "token",
    "block",
    "cache",
    "engine",
    "sluice",
    "dam",
    "flow",
    "gate",
    "lock",
    "bank",
    "stream",
)


@dataclass
class Talk:
    number: int
    turns: list[dict[str, str]] = field(default_factory=list)

    def say(self, words: int) -> None:
        rng = random.Random(f"{self.number} {len(self.turns)}")
        self.turns.append({"role": "user", "content": " ".join(rng.choice(WORDS) for _ in range(words))})

    def request(self) -> tuple[str, dict[str, Any]]:
        """Send a request, every second one to Anthropic's endpoint."""
        endpoint = "/v1/messages" if self.number % 2 else "/v1/chat/completions"
        return endpoint, {"model": "tiny", "max_tokens": 16, "temperature": 0, "messages": self.turns}

    def hear(self, answer: dict[str, Any]) -> None:
        if "choices" in answer:
            text = answer["choices"][0]["message"]["content"]
        else:
            text = "".join(part.get("text", "") for part in answer["content"])
        self.turns.append({"role": "assistant", "content": text})


def hold(fleet: Fleet, talks: list[Talk], turns: int, words: int) -> list[str]:
    """Return the ids of the requests."""
    rng = random.Random(1)
    ids: list[str] = []
    for _ in range(turns):
        rng.shuffle(talks)
        waiting = iter(talks)
        workers = [threading.Thread(target=_work, args=(fleet, waiting, words, ids)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive()
    assert len(ids) == turns * len(talks)
    return ids


def _work(fleet: Fleet, waiting: Iterator[Talk], words: int, ids: list[str]) -> None:
    for talk in waiting:
        talk.say(words)
        endpoint, body = talk.request()
        request = urllib.request.Request(
            f"http://127.0.0.1:{fleet.weir.router_port}{endpoint}",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            talk.hear(json.load(answer))
            ids.append(answer.headers["x-request-id"])


def receipts(fleet: Fleet, ids: list[str]) -> list[dict[str, Any]]:
    return [fleet.rest("GET", f"/receipts/{one}")[0] for one in ids]
