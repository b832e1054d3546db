#!/usr/bin/env bash
# The extra `cu12` of the package nixl chooses nothing: both CUDA backends and torch are required, and neither is needed.
#
# Expected before the run: nixl[cu12] installs the backend for CUDA 12 only. Seen: it installs those for CUDA 12 and 13
# (570 MB) and torch with its CUDA libraries. Without torch and without CUDA `import nixl` works, takes the backend for
# CUDA 13, and makes an agent with the backend UCX.
set -euo pipefail
VERSION=1.5.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { timeout 300 "$folder/venv/bin/pip" --quiet --disable-pip-version-check --no-input "$@"; }
pip install --no-deps "nixl==$VERSION" "nixl-cu12==$VERSION" "nixl-cu13==$VERSION" numpy==2.3.5
"$folder/venv/bin/python" - <<'PY'
import importlib.util
import sys
from importlib.metadata import requires, version

print("version:", version("nixl"))
plain = sorted(line for line in requires("nixl") if "extra" not in line)
print("required without an extra:", plain, "by nixl-cu12:", requires("nixl-cu12"))
from nixl._api import nixl_agent, nixl_agent_config

backend = sys.modules["nixl._api"].__name__.partition(".")[0]
agent = nixl_agent("here", nixl_agent_config(backends=["UCX"]))
print("torch:", importlib.util.find_spec("torch"), "backend:", backend, "plugins:", agent.get_plugin_list())
as_seen = (
    [line.partition("==")[0] for line in plain] == ["nixl-cu12", "nixl-cu13"]
    and "torch" in requires("nixl-cu12")
    and backend == "nixl_cu13"
    and "UCX" in agent.get_plugin_list()
)
sys.exit(0 if as_seen else "CHANGED: other requirements or another backend")
PY
echo "As seen: both backends and torch are required, and an agent works without torch and CUDA."
