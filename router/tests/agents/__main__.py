"""Codex, Claude Code and Qwen Code hold conversations through a router with two real vLLM engines. The router's
predictions for their prompts are compared with the tokens that the engines had cached. The exit status is 1 if too few
predictions are right.

python -m router.tests.agents FOLDER [vllm | sglang] [long] [AGENT]...
    (FOLDER has the agents' npm packages, see `make test-agents`; an AGENT is named as in its reports: "Qwen Code")

Before engines that simulate either it takes minutes instead of a quarter of an hour, and the largest prompt is smaller.
`long` leaves out the conversations: it only tries a prompt beyond the context of the engines.

It runs in a network namespace with nothing but a loopback, so no agent reaches anybody else.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from router.tests.agents.scripted import FAR
from router.tests.ports import free_ports

CODE = Path(__file__).resolve().parents[3]
ENGINES = CODE / ".engines"
MODEL, BLOCK, CONTEXT, SIM_CONTEXT = "tiny", 32, 65_536, 16_384
TURNS, SESSIONS = 8, 2
GOOD = 0.95  # share of the requests predicted within a block
TURN_S = 600  # limit of one turn
# Turns with much output that fill the context, and the message with which an agent leaves compacting to a person
FILLED = {"Codex": (7, "ran out of room in the model's context window"), "Claude Code": (4, ""), "Qwen Code": (4, "")}
Receipt = dict[str, Any]


def alone() -> None:
    """Start again in a network namespace with only a loopback, unless already in one."""
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        again = 'ip link set lo up && exec "$0" -m router.tests.agents "$@"'
        os.execvp(
            "unshare",
            ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", again, sys.executable, *sys.argv[1:]],
        )


@contextlib.contextmanager
def process(command: Sequence[object], log: Path, **variables: str) -> Iterator[None]:
    with log.open("wb") as written:
        made = subprocess.Popen(
            [str(word) for word in command],
            cwd=CODE,
            env={**os.environ, **variables},
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.pid, signal.SIGKILL)
        made.wait()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def until(holds: Callable[[], object], what: str, limit_s: float = 600) -> None:
    ends = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError, ValueError):
            if holds():
                return
        if time.monotonic() > ends:
            raise SystemExit(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(1)


def simulated(dialect: str, port: int, events: int, replay: int) -> list[object]:
    return [
        *(sys.executable, "-m", "fleet.simengine", "--port", port, "--model", MODEL, "--max-model-len", SIM_CONTEXT),
        *("--block-size", BLOCK, "--events-port", events, "--replay-port", replay, "--events-dialect", dialect),
    ]


def vllm(port: int, events: int, replay: int) -> list[object]:
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv"}
    places = {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}
    return [
        *(ENGINES / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port),
        *("--model", ENGINES / "tiny-model", "--served-model-name", MODEL, "--load-format", "dummy"),
        *("--dtype", "float32", "--max-model-len", CONTEXT, "--block-size", BLOCK, "--enforce-eager"),
        *("--num-gpu-blocks-override", 8192, "--enable-prompt-tokens-details", "--enable-auto-tool-choice"),
        *("--tool-call-parser", "hermes", "--kv-events-config", json.dumps({**told, **places})),
    ]


ON_CPU = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "KMP_BLOCKTIME": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@contextlib.contextmanager
def fleet(folder: Path, simulates: str) -> Iterator[str]:
    """Return the router's URL."""
    engine, tokenizer = (partial(simulated, simulates), "sim") if simulates else (vllm, ENGINES / "tiny-model")
    router, *ports = free_ports(9)
    url, listed = f"http://127.0.0.1:{router}", []
    with contextlib.ExitStack() as stack:
        of_engines = {"a": ports[:4], "b": ports[4:]}
        for name, (port, events, replay, scripted) in of_engines.items():
            stack.enter_context(process(engine(port, events, replay), folder / f"engine-{name}.log", **ON_CPU))
            program = [sys.executable, Path(__file__).with_name("scripted.py"), scripted, f"http://127.0.0.1:{port}"]
            stack.enter_context(process(program, folder / f"scripted-{name}.log"))
            place = f"tcp://127.0.0.1:{events}?replay=tcp://127.0.0.1:{replay}&topic=kv"
            listed.append(f"http://127.0.0.1:{scripted};id={name};events={place};tokenizer={tokenizer}")
        for name, (port, *_) in of_engines.items():
            until(lambda port=port: get(f"http://127.0.0.1:{port}/v1/models"), f"engine {name}")
        command = [sys.executable, "-m", "router", "--port", router, "--instances", ",".join(listed)]
        stack.enter_context(process(command, folder / "router.log"))
        until(lambda: get(f"{url}/v1/models")["data"], "the router")
        yield url


# The agents: each command runs one turn, the first of a session or a later one


def codex(packages: Path, home: Path, url: str, further: bool, words: str) -> list[object]:
    (home / ".codex").mkdir(exist_ok=True)
    provider = f'name = "weir"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
    config = f'model = "{MODEL}"\nmodel_provider = "weir"\n[model_providers.weir]\n{provider}'
    (home / ".codex/config.toml").write_text(config)
    return [packages / "codex", "exec", *(("resume", "--last") if further else ()), "--skip-git-repo-check", words]


def claude(packages: Path, home: Path, url: str, further: bool, words: str) -> list[object]:
    return [packages / "claude", *(("-c",) if further else ()), "-p", words, "--model", MODEL, "--allowedTools", "Bash"]


def qwen(packages: Path, home: Path, url: str, further: bool, words: str) -> list[object]:
    return [packages / "qwen", *(("-c",) if further else ()), "-p", words, "--auth-type", "openai", "-y"]


AGENTS = {"Codex": codex, "Claude Code": claude, "Qwen Code": qwen}


def converse(agent: str, packages: Path, url: str, number: int, words: Sequence[str] = ()) -> str:
    """Hold one session with these `words`. Return the agent's output in the turn that failed."""
    asked = words or [
        f"Question {turn} of session {number}: say hi by the shell, then say done." for turn in range(TURNS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / f"work-{number}"
        work.mkdir()
        for turn, said in enumerate(asked):
            command = AGENTS[agent](packages, Path(folder), url, turn > 0, said)
            made = subprocess.run(
                [str(word) for word in command],
                cwd=work,
                env=variables(folder, url),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TURN_S,
            )
            if made.returncode:
                return f"turn {turn} ended with {made.returncode}: {(made.stdout + made.stderr)[-800:]}"
    return ""


def variables(folder: str, url: str) -> dict[str, str]:
    return {
        **{"HOME": folder, "PATH": os.environ["PATH"], "OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"},
        **{"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": MODEL, "CI": "1"},
        **{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"},
    }


def filled(agent: str, packages: Path, url: str) -> str:
    """Check that a prompt beyond the engines' context gets the error that lets the agent compact. Return what is
    wrong."""
    begun, (turns, says) = time.time(), FILLED[agent]
    words = ("say hi by the shell", *[f"{FAR} by the shell"] * turns, "say hi by the shell")
    said = converse(agent, packages, url, SESSIONS, words)
    received = sorted(receipts(url, begun), key=lambda each: each["at"])
    refused = [place for place, each in enumerate(received) if each.get("outcome") == "client_error"]
    served = [each["prompt_tokens"] for each in received[refused[0] :] if each["outcome"] == "ok"] if refused else []
    print(
        f"AGENTS {agent}, too long: {len(refused)} refused, then {len(served)} served of {served[:6]} tokens; "
        f"it says {' '.join(said.split())[-200:]!r}",
        flush=True,
    )
    good = says in said if says else served and not said
    return "" if refused and good else f"{agent}: it did not go on after a prompt that was too long"


def receipts(url: str, since: float) -> list[Receipt]:
    return [each for each in get(f"{url}/receipts")["receipts"] if each["at"] >= since]


def judged(agent: str, received: Sequence[Receipt], engines: Mapping[str, set[str]]) -> str:
    """Print a line of the table. Return what is not good enough. `engines` are those that served each conversation."""
    asked = [each for each in received if each.get("endpoint") in PROMPTS and each.get("cached_tokens") is not None]
    good = [each for each in asked if abs((each.get("predicted_cached") or 0) - each["cached_tokens"]) <= BLOCK]
    exact = sum(each.get("index") == "exact" for each in asked)
    named = len({each.get("session") for each in asked})
    stayed = sum(len(used) == 1 for used in engines.values())
    cached, tokens = (sum(each[name] for each in asked) for name in ("cached_tokens", "actual_prompt_tokens"))
    print(
        f"AGENTS {agent}: {len(asked)} requests in {named} sessions, {len(good)} predicted within a block, "
        f"{exact} by the exact index, {cached:,} of {tokens:,} tokens cached, "
        f"{stayed} of {len(engines)} conversations stayed on one engine",
        flush=True,
    )
    for each in [each for each in asked if each not in good][:5]:
        print(
            "  ",
            {name: each.get(name) for name in ("endpoint", "index", "predicted_cached", "cached_tokens", "instance")},
        )
    if len(asked) < TURNS * SESSIONS or len(good) < GOOD * len(asked):
        return f"{agent}: {len(good)} of {len(asked)} requests are predicted within a block"
    if len(engines) != SESSIONS or stayed < SESSIONS:
        moves = [(each["instance"], "; ".join(each["reasons"])) for each in sorted(asked, key=lambda each: each["at"])]
        print(*moves, sep="\n")
        return f"{agent}: {stayed} of {SESSIONS} conversations stayed on one engine"
    return ""


def engines_by_conversation(folder: Path, read: Counter[Path]) -> dict[str, set[str]]:
    """Return the engines that have served each conversation since the last call, according to the scripted servers."""
    found: dict[str, set[str]] = defaultdict(set)
    for log in folder.glob("scripted-*.log"):
        lines = log.read_text().splitlines()
        for line in lines[read[log] :]:
            if line.startswith("asked: session"):
                found[line].add(log.name)
        read[log] = len(lines)
    return found


PROMPTS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


def conversations(agent: str, packages: Path, url: str, seen: Callable[[], Mapping[str, set[str]]]) -> list[str]:
    """Hold several conversations at once; return the problems. `seen` returns the engines that have served each
    conversation since its last call."""
    begun = time.time()
    with ThreadPoolExecutor(SESSIONS) as together:
        made = list(together.map(lambda number: converse(agent, packages, url, number), range(SESSIONS)))
    return [*(f"{agent}: {why}" for why in made if why), judged(agent, receipts(url, begun), seen())]


def main(packages: Path, simulates: str, agents: Sequence[str], *, only_long: bool) -> int:
    """Run the test. `simulates` names the KV events that simulated engines publish; if it is empty, the engines are
    real vLLM.
    """
    wrong: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="weir-agents-"))
    print(f"AGENTS logs: {folder}", flush=True)
    read: Counter[Path] = Counter()
    with fleet(folder, simulates) as url:
        for agent in agents:
            if not only_long:
                wrong += conversations(agent, packages, url, partial(engines_by_conversation, folder, read))
            wrong.append(filled(agent, packages, url))
    wrong = [each for each in wrong if each]
    print("\n".join(wrong) or "AGENTS good", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    alone()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes it started end with it
    where, *words = sys.argv[1:]
    simulates = words.pop(0) if words and words[0] in ("vllm", "sglang") else ""
    only_long = words[:1] == ["long"]
    words = words[only_long:]
    if unknown := [word for word in words if word not in AGENTS]:
        sys.exit(f"{unknown[0]!r} is not one of {', '.join(AGENTS)}")
    sys.exit(main(Path(where).resolve() / "node_modules/.bin", simulates, words or list(AGENTS), only_long=only_long))
