"""LoRA adapters of the document Models on a real vLLM."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.tests.engines.fleet import CODE, LONG, PATIENCE_S, SAME, Fleet, running

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
BLOCK = 32  # tokens
SOON_S = 5.0  # from ready until every adapter is listed
LORA = """enable_lora: true
        max_loras: 2
        max_cpu_loras: 2
        max_lora_rank: 8
        """


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One vLLM, and two adapters that Weir loads."""
    folder: Path = tmp_path_factory.mktemp("fleet")
    text = (CODE / "examples/cpu-plain.yaml").read_text().replace("replicas: 2", "replicas: 1")
    document = folder / "cpu-lora.yaml"
    document.write_text(text.replace("block_size: 32", f"{LORA}block_size: 32").replace("./.eng", str(CODE / ".eng")))
    models: dict[str, Any] = {}
    for seed, name in enumerate(("alpha", "beta")):
        made = [CODE / ".engines/bin/python", CODE / "examples/tiny_adapter.py", folder / name, str(seed)]
        subprocess.run(made, check=True)
        adapter = {"name": f"{name}@v1", "source": str(folder / name), "replicas": 1}
        models[name] = {"pool": "tiny", "adapter": adapter}
    with running(document) as made_fleet:
        made_fleet.rest("PUT", "/models?reason=two+adapters+of+the+tiny+model", {"schema": 1, "models": models})
        made_fleet.note("two adapters listed", made_fleet.until(lambda: homes(made_fleet) == 2, "the adapters"))
        yield made_fleet


def homes(fleet: Fleet) -> int:
    """Return the adapters that the engine lists."""
    with urllib.request.urlopen(fleet.one("tiny-0")["url"] + "/v1/models", timeout=30) as answer:
        return sum(bool(one["parent"]) for one in json.load(answer)["data"])


def ask(fleet: Fleet, model: str, prompt: str) -> tuple[list[int], dict[str, Any]]:
    """Return (tokens of the answer, receipt)."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{fleet.weir.router_port}/v1/completions",
        json.dumps({"model": model, "prompt": prompt, "max_tokens": 8, **SAME}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        said, name = json.load(answer), answer.headers["x-request-id"]
    assert said["model"] == model
    found: list[dict[str, Any]] = []
    fleet.until(lambda: bool(found.extend(receipts_of(fleet, name)) or found), "the receipt", 30)
    return said["choices"][0]["token_ids"], found[0]


def receipts_of(fleet: Fleet, request: str) -> list[dict[str, Any]]:
    """Return a list with the receipt; empty until the router has written it."""
    try:
        return [fleet.rest("GET", f"/receipts/{request}")[0]]
    except AssertionError:
        return []


def test_each_adapter_answers_with_its_own_weights_and_cache_and_both_are_loaded_again_after_a_restart(
    fleet: Fleet,
) -> None:
    fleet.until(lambda: "exact" in fleet.page("/fleet/instances/tiny-0/"), "the index to be believed", 60)
    answers, receipts = {}, []
    for turn in range(2):
        for model in ("tiny", "alpha", "beta"):
            tokens, receipt = ask(fleet, model, LONG)
            receipts.append(receipt)
            assert answers.setdefault(model, tokens) == tokens
            assert (receipt["adapter"], receipt["index"]) == (model + "@v1" if model != "tiny" else None, "exact")
            assert (receipt["cached_tokens"] > 1500) == bool(turn), "an adapter has its own blocks"
    assert len({tuple(tokens) for tokens in answers.values()}) == 3
    errors = [abs(one["predicted_cached"] - one["cached_tokens"]) for one in receipts]
    print(f"ENGINES adapters: predicted and actual cached tokens differ by {errors}")
    assert max(errors) <= BLOCK

    epoch = fleet.one("tiny-0")["epoch"]
    fleet.kill("tiny-0")
    fleet.until(fleet.is_replaced("tiny-0", epoch), "the engine to be back")
    took = fleet.until(lambda: homes(fleet) == 2, "the adapters after the restart")
    fleet.note("two adapters listed again, after ready", took)
    assert took <= SOON_S
    assert fleet.until(lambda: ask(fleet, "beta", LONG)[0] == answers["beta"], "the adapter to serve", 30) < 30
