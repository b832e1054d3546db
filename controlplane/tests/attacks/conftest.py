"""One real Weir per test process, with two simulated engines, which the tests attack from outside."""

import pytest

from controlplane.tests.attacks.target import Target
from controlplane.tests.real_up import running

FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: attacked}
spec:
  pools:
    - name: demo
      model: llama-3.1-8b
      kind: sim
      replicas: 2
      engine: {time_scale: 10.0, seed: 1, engine_key: "env:ATTACKED_ENGINE_KEY"}
    - name: real
      model: tiny
      kind: vllm
      replicas: 0
      engine: {environment: {ENGINE_SECRET: "%s"}}
"""
CANARY = "canary-7f3a9c51e2d8-engine"
ENGINE_KEY = "canary-2c9e-that-the-engines-ask-for"
REDIS_CANARY = "canary-5b0d-redis"


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    fleet = tmp_path_factory.mktemp("attacked") / "fleet.yaml"
    fleet.write_text(FLEET % CANARY)
    with running("--fleet", str(fleet), ATTACKED_ENGINE_KEY=ENGINE_KEY) as weir:
        weir.wait_for("2/2 instances of pool demo are ready")
        yield Target(weir)
