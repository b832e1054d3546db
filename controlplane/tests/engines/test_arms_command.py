"""The prepared command of `bench.arms` for a GPU, as far as a machine without one can tell."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import arms
from controlplane.tests.engines.fleet import CODE
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch, check_engine
from fleet.kinds.options.option import build

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
PYTHON = CODE / ".engines/bin/python"
# Parses what `vllm serve` would, and makes the configurations that need no device.
PARSED = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
told = []
for words in json.load(sys.stdin):
    parser = make_arg_parser(FlexibleArgumentParser())
    given = parser.parse_args(words)
    given.model = given.model_tag or given.model
    validate_parsed_serve_args(given)
    engine = AsyncEngineArgs.from_cli_args(given)
    moves = engine.kv_transfer_config
    told.append([engine.model, engine.max_model_len, engine.gpu_memory_utilization, engine.load_format,
                 moves.kv_connector, moves.kv_role])
print(json.dumps(told))
"""


def options(monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["arms", "--python", str(PYTHON), *words])
    return arms.arguments()


def test_the_installed_vllm_takes_what_the_command_for_a_gpu_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = options(monkeypatch, "--model", "Llama-3.1-8B", "--heavy", "8000")
    (pool,) = arms.document(given, tmp_path)["spec"]["pools"]
    kind, lines = KINDS[pool["kind"]], []
    assert check_engine(kind, pool["engine"], "engine") == []
    for ordinal in range(pool["replicas"]):
        ports = {name: 18_100 + 10 * ordinal + place for place, name in enumerate(kind.ports)}
        at = Launch(
            f"arms-{ordinal}", pool["model"], "127.0.0.1", ports, str(PYTHON), ordinal, str(tmp_path), str(CODE)
        )
        words = kind.command(build(kind.spec, pool["engine"]), at)
        lines.append(words[words.index("serve") + 1 :])
    ran = subprocess.run([PYTHON, "-c", PARSED], input=json.dumps(lines), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2_000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    model = str(tmp_path / "model")
    assert told == [[model, 32_000, 0.22, "dummy", "NixlConnector", "kv_both"]] * 2


def test_engines_of_both_fleets_share_a_gpu_and_each_arm_is_that_of_the_design(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = options(monkeypatch, "--model", "Llama-3.1-8B", "--heavy", "8000")
    (pool,) = arms.document(given, tmp_path)["spec"]["pools"]
    assert 2 * pool["replicas"] * given.share <= 0.9, "the pool's idle engines are there beside those of an arm"
    weights, kv = 2 * 8.03e9, 4 * given.heavy * 2 * 8 * 128 * 2 * 32  # bytes, in 16 bits
    assert weights + kv < 0.9 * given.share * 141e9, "an engine fits its share of an H200"
    assert [one["name"] for one in arms.arms(given)] == ["A", "B", "D"]
    assert {one["overrides"]["classes.heavy_new_tokens"] for one in arms.arms(given)} == {8_000}
