"""Sends each kind of request twice to a real vLLM: the router's prediction for the second one beside the tokens that
were cached.

python -m router.tests.engines.request_kinds > docs/findings/tables/request-kinds.csv (`make engines` first)

The shapes of router/tests/tokenize/shapes.py with a long question, and completions. What vLLM refuses is left out. Ends
with 1 when fewer than GOOD of the requests are within a block.
"""

import csv
import json
import random
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from router.prefix.request_kind import kind_of
from router.tests.agents.__main__ import BLOCK, ENGINES, MODEL, ON_CPU, Receipt, get, process, receipts, until
from router.tests.engines.hybrids import GOOD, command, words
from router.tests.ports import free_ports
from router.tests.tokenize.shapes import CHAT, MESSAGES, RESPONSES, SHAPES

TEXT = "/v1/completions"
LIMITS = {TEXT: "max_tokens", CHAT: "max_tokens", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}
MORE = ("--block-size", str(BLOCK), "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
PROMPTS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "hi"},
    "tokens": {"prompt": [7 + number % 400 for number in range(300)]},
    "several prompts": {"prompt": ["hi", "hi"]},
    "probabilities of the prompt": {"prompt": "hi", "prompt_logprobs": 1},
    "echo with probabilities": {"prompt": "hi", "echo": True, "logprobs": 1},
    "echo": {"prompt": "hi", "echo": True},
    "salt": {"prompt": "hi", "cache_salt": "mine"},
    "no special tokens": {"prompt": "hi", "add_special_tokens": False},
    "a prompt cut short": {"prompt": "hi", "truncate_prompt_tokens": 100},
}
CHATS: dict[str, dict[str, Any]] = {
    "salt": {"messages": [{"role": "user", "content": "hi"}], "cache_salt": "mine"},
    "a template of its own": {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    },
    "an answer to be continued": {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "probabilities of the prompt": {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1},
}
Asked = tuple[str, str, dict[str, Any]]  # name, path, body


def asked() -> Iterator[Asked]:
    shapes = [(name, path, body) for name, (path, body) in SHAPES.items()]
    shapes += [(name, TEXT, body) for name, body in PROMPTS.items()]
    shapes += [(name, CHAT, body) for name, body in CHATS.items()]
    for number, (name, path, body) in enumerate(shapes):
        question = f"{name}: {words(random.Random(number), 80)}"
        yield name, path, {**lengthened(body, question), "model": MODEL, LIMITS[path]: 1}


def lengthened(value: Any, question: str) -> Any:
    """Return the request with a question other than `hi`."""
    if isinstance(value, dict):
        return {name: lengthened(each, question) for name, each in value.items()}
    if isinstance(value, list):
        return [lengthened(each, question) for each in value]
    return question if value == "hi" else value


def ask(url: str, path: str, body: dict[str, Any], left: int = 20) -> str:
    """Return the request's id; empty if the request was refused. An engine on a busy machine may stall, so the request
    is repeated.
    """
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()
            return str(answer.headers["x-request-id"])
    except urllib.error.HTTPError as error:
        print(f"{path} {error.code} {error.read()[:300]!r}", file=sys.stderr)
        if error.code != 503 or not left:
            return ""
    time.sleep(3)
    return ask(url, path, body, left - 1)


def played() -> dict[str, list[Receipt]]:
    """Return the receipts of second requests by kind."""
    with tempfile.TemporaryDirectory(prefix="weir-kinds-") as name:
        folder, (router, *ports) = Path(name), free_ports(4)
        (folder / "model").symlink_to(ENGINES / "tiny-model")
        events = f"tcp://127.0.0.1:{ports[1]}?replay=tcp://127.0.0.1:{ports[2]}&topic=kv"
        listed = f"http://127.0.0.1:{ports[0]};id=a;events={events};tokenizer={folder / 'model'}"
        weir = [sys.executable, "-m", "router", "--port", router, "--instances", listed]
        log, url, by_kind = (
            Path(tempfile.gettempdir()) / "weir-kinds.log",
            f"http://127.0.0.1:{router}",
            defaultdict(list),
        )
        with process(command(folder, ports, MORE), log, **ON_CPU):
            until(lambda: get(f"http://127.0.0.1:{ports[0]}/v1/models"), f"the engine, see {log}")
            with process(weir, Path(tempfile.gettempdir()) / "weir-kinds-router.log"):
                until(lambda: get(f"{url}/healthz")["instances"][0]["index"] == "exact", "an exact index")
                made = [(path, body, [ask(url, path, body) for _ in range(2)]) for _, path, body in asked()]
                known = {each["request_id"]: each for each in receipts(url, 0.0)}
        for path, body, (_, second) in made:
            if second:
                by_kind[kind_of(path, body)].append(known[second])
        return by_kind


def row(kind: str, received: Sequence[Receipt]) -> list[object]:
    pairs = [(each.get("predicted_cached") or 0, each.get("cached_tokens") or 0) for each in received]
    exact = sum(each.get("index") == "exact" for each in received)
    same, good = (sum(abs(one - other) <= most for one, other in pairs) for most in (0, BLOCK))
    why = "; ".join(sorted({str(each["index_reason"]) for each in received if each.get("index_reason")}))
    return [kind, len(pairs), exact, same, good, *map(sum, zip(*pairs, strict=True)), why]


def main() -> int:
    rows = [row(kind, received) for kind, received in sorted(played().items())]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    head = "kind,requests,by the exact index,to the token,within a block,predicted cached tokens,actual,why not exact"
    writer.writerow(head.split(","))
    writer.writerows(rows)
    within, n = (sum(int(str(each[place])) for each in rows) for place in (4, 1))
    return within < GOOD * n


if __name__ == "__main__":
    sys.exit(main())
