"""The prediction and grouping of coding agents' requests, with and without Weir's knowledge of agents:
`python -m bench.agent_sessions [--sessions 12] [--turns 12] [--without billing,names,reasoning]`.

Sessions send what Claude Code, Codex and Qwen Code were seen to send, through a router alone, to four simulated engines
that keep Claude Code's billing line as SGLang does. Without `billing` the line stays in prompts and changes with each
request; without `names` only `x-session-id` and fields of the body name a session; without `reasoning` no prompt with
thinking or reasoning is read as tokens. Printed per agent: requests by the exact index, mean predicted and actual
cached tokens, their mean difference, the share within a block, and how many sessions stayed on one engine.
"""

import argparse
import asyncio
import random
import sys
from collections import defaultdict
from typing import Any

import httpx

from bench.accuracy import engines, free_port, process, ready, row

LEFT_OUT = """
import runpy, sys
from router.tokenize import billing, sim
from router.tokenize.tokenizer import NotTokenized
left_out, sys.argv = sys.argv[1].split(","), ["router", *sys.argv[2:]]
if "billing" in left_out:
    billing.LINE = "\\0"
if "reasoning" in left_out:
    rendered = sim._rendered
    def refusing(document, api_path):
        if not {"thinking", "output_config", "reasoning"}.isdisjoint(document):
            raise NotTokenized("reasoning")
        return rendered(document, api_path)
    sim._rendered = refusing
runpy.run_module("router", run_name="__main__")
"""
OLD_NAMES = "header:x-session-id,body:user,body:session_id,body:metadata.session_id,body:metadata.user_id"
SYSTEM, TOOLS, TURN = 20_000, 8_000, 4_000  # bytes
AGENTS = ("Claude Code", "Codex", "Qwen Code")
Body = dict[str, Any]


def words(seed: object, size: int) -> str:
    """Return text in whole tokens of simulated engines, four bytes each."""
    return random.Random(str(seed)).randbytes(size // 2).hex()


def history(agent: str, session: int, turn: int) -> list[Body]:
    """Return the turns so far; every eighth turn an agent replaces them by a summary."""
    first = turn - turn % 8
    begun = [{"role": "user", "content": words((agent, session, first), TURN if first else SYSTEM // 5)}]
    for number in range(first, turn):
        begun += [
            {"role": "assistant", "content": words((agent, session, number, "a"), TURN // 4)},
            {"role": "user", "content": words((agent, session, number, "b"), TURN)},
        ]
    return begun


def asked(agent: str, session: int, turn: int) -> tuple[str, dict[str, str], Body]:
    """Return the path, headers and body of a request as the agent sends it."""
    said, system = history(agent, session, turn), words((agent, "system"), SYSTEM)
    own = {"model": "sim", "tools": [{"name": "t", "description": words((agent, "tools"), TOOLS)}]}
    if agent == "Claude Code":
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={random.randbytes(4).hex()};"
        thinks = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "max_tokens": 32}
        blocks = [{"type": "text", "text": text} for text in (line, system)]
        named = {"x-claude-code-session-id": f"claude-{session}"}
        return "/v1/messages", named, {**own, **thinks, "system": blocks, "messages": said}
    if agent == "Codex":
        named = {name: f"codex-{session}" for name in ("thread-id", "session-id", "x-client-request-id")}
        body = {"instructions": system, "input": said, "reasoning": {"summary": "auto"}, "max_output_tokens": 32}
        return "/v1/responses", {**named, "x-codex-window-id": f"codex-{session}:0"}, {**own, **body, "store": False}
    return (
        "/v1/chat/completions",
        {},
        {**own, "max_tokens": 32, "messages": [{"role": "system", "content": system}, *said]},
    )


async def converse(url: str, agent: str, session: int, turns: int) -> list[str]:
    """Return the ids of the session's requests."""
    made = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for turn in range(turns):
            path, headers, body = asked(agent, session, turn)
            answer = await client.post(path, json=body, headers=headers)
            answer.raise_for_status()
            made.append(answer.headers["x-request-id"])
            await asyncio.sleep(random.random())
    return made


async def play(url: str, options: argparse.Namespace) -> list[list[str]]:
    await ready(url)
    each = [(AGENTS[number % len(AGENTS)], number) for number in range(options.sessions)]
    ids = await asyncio.gather(*(converse(url, agent, number, options.turns) for agent, number in each))
    async with httpx.AsyncClient(base_url=url) as client:
        receipts = {one["request_id"]: one for one in (await client.get("/receipts")).json()["receipts"]}
    by_agent: dict[str, list[list[Body]]] = defaultdict(list)
    for (agent, _), of_session in zip(each, ids, strict=True):
        by_agent[agent].append([receipts[one] for one in of_session])
    return [judged(agent, by_agent[agent]) for agent in AGENTS]


def judged(agent: str, listed: list[list[Body]]) -> list[str]:
    whole = [receipt for of_session in listed for receipt in of_session]
    pairs = [(one["predicted_cached"] or 0, one["cached_tokens"] or 0) for one in whole]
    stayed = sum(len({one["instance"] for one in of_session}) == 1 for of_session in listed)
    exact = sum(one["index"] == "exact" for one in whole)
    _, _, *told, _ = row("", pairs, len(whole), 0)
    return [agent, f"{exact}/{len(whole)}", *told, f"{stayed}/{len(listed)}"]


def measure(options: argparse.Namespace) -> list[list[str]]:
    port = free_port()
    with engines(options.engines, options.kv_blocks, options.time_scale) as urls:
        listed = ",".join(f"{url};events={url};tokenizer=sim" for url in urls)
        words = ["--instances", listed, "--port", str(port), "--log-level", "warning"]
        if "names" in options.without:
            words += ["--session-names", OLD_NAMES]
        if "billing" not in options.without:
            words.append("--remove-billing-line")
        with process(LEFT_OUT, ",".join(options.without), *words, flag="-c"):
            return asyncio.run(play(f"http://127.0.0.1:{port}", options))


def main() -> None:
    parser = argparse.ArgumentParser(description="Coding agents' requests")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--kv-blocks", type=int, default=12_000)
    parser.add_argument("--time-scale", type=float, default=1)
    parser.add_argument("--without", type=lambda given: given.split(","), default=[])
    options = parser.parse_args()
    random.seed(1)
    print(
        "agent, by the exact index, predicted, actual, mean error, within a block, sessions that stayed",
        file=sys.stderr,
    )
    for line in measure(options):
        print(*line, sep=" | ")


if __name__ == "__main__":
    main()
