"""The compiled copy simulates a trace as its sources do. router/tests/test_compiled.py tests when the copy is used."""

import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.evidence.twin.compiled import PLAYS
from fleet.tests.engine.test_compiled import BUILDERS

ROOT = Path(__file__).resolve().parents[5]
PLAY = """
import sys
from pathlib import Path
from controlplane.evidence.twin.compiled import PLAYS
print(PLAYS.use(Path(sys.argv[1])))
from controlplane.evidence.plan.fleets import DEFAULT_POOL, played
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.twin.simulation.simulate import simulate
from dataclasses import replace
from fleet.spec.fleet_spec import FleetSpec
from router.policy.schema import document
trace, split = generate(seed=2, duration_s=120), {"kv": "nixl", "prefill_instances": 1}
for policy, engine in (("priced", {"dram_gb": 20.0}), ("adaptive_offload", split), ("priced", {"kv": "nixl"})):
    pool = replace(DEFAULT_POOL, replicas=3, engine={**DEFAULT_POOL.engine, "kv_blocks": 6000, **engine})
    fleet, parsed = played(pool, FleetSpec("f", (pool,))).twin, document.parse(document.default(policy))
    for pacing in ("timestamps", "closed_loop"):
        print(simulate(fleet, parsed, trace.requests[:150], pacing=pacing, seed=1))
"""


def run(*words: str | Path) -> list[str]:
    found = subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return found.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not BUILDERS, reason="needs a C compiler, Python's headers and setuptools")
def test_the_compiled_copy_simulates_a_trace_identically_to_the_last_digit(tmp_path: Path) -> None:
    run("deploy/compile.py", PLAYS.package, tmp_path / "copy")
    plain, compiled = run("-c", PLAY, tmp_path / "none"), run("-c", PLAY, tmp_path / "copy")
    assert (plain[0], compiled[0]) == ("False", "True")
    assert len(plain) == 7
    assert compiled[1:] == plain[1:]
