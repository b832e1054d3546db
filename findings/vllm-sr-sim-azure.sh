#!/usr/bin/env bash
# The simulator of vLLM's semantic router finds no request in Azure's trace, and simulates that without a word.
#
# Expected before the run: its format `azure_csv`, for "Azure LLM Inference Trace CSV", reads the rows of Azure's files, or
# names the first that it cannot read. Seen: it takes TIMESTAMP for a number, which is a date in all that Azure published,
# and skips each row that is none, so a trace of any length is empty. The fleet then idles, and its summary has percentiles
# and a compliance with the SLO of nan. With the dates turned into seconds the same rows are read.
# The rows have the form of Azure's files of 2023 and 2024. A download of 60 MB; no GPU.
set -euo pipefail
VERSION=0.1.0.dev20260713123629
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input install --no-compile --target packages \
  "vllm-sr-sim==$VERSION" numpy==2.4.6 scipy==1.17.1 2>/dev/null
cat > read.py <<'PY'
import sys

from fleet_sim import H100_80GB, Fleet, FleetConfig, PoolConfig
from fleet_sim.workload import TraceWorkload

TIMES = {
    "2023": ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"),
    "2024": ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.017335+00:00"),
    "seconds": ("0.0", "4.3"),
}
found = {}
for name, times in TIMES.items():
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{at},374,44" for at in times)]
    with open(f"{name}.csv", "w") as file:
        print(*rows, sep="\n", file=file)
    trace = TraceWorkload(f"{name}.csv", fmt="azure_csv").generate()
    summary = Fleet(FleetConfig([PoolConfig("pool", H100_80GB, 1, 8192)])).run(trace).summary(500)
    found[name] = (len(trace), summary["total_completed"], str(summary["fleet_slo_compliance"]))
    print(f"  {name}: rows 2, requests {len(trace)}, completed and SLO met:", *found[name][1:])
expected = {"2023": (0, 0, "nan"), "2024": (0, 0, "nan"), "seconds": (2, 2, "1.0")}
sys.exit(0 if found == expected else f"CHANGED: {found}")
PY
echo "version: vllm-sr-sim $VERSION"
PYTHONPATH=packages timeout 100 python3 read.py
echo "As seen: no request."
