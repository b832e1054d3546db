#!/usr/bin/env bash
# The counters of Mooncake's master know no miss: engines ask it first what exists, and only reads are gets.
#
# Expected before the run: mem_cache_hit_nums_ divided by total_get_nums_ is the store's hit ratio, and
# mem_cache_hit_bytes_total what was read from it. Seen: of ten keys, of which a store holds three, asked for with
# batch_is_exist and the three then read, as vLLM, SGLang and LMCache do, both counters grow by three: a ratio of 100 %.
# get_size, which reads nothing, counts as a get, a hit and all bytes of the value. Each of these questions also keeps the
# value from eviction for a lease (10 s by default). A download of 46 MB; no GPU; Debian: libibverbs1, libnuma1,
# libcurl4.
set -euo pipefail
VERSION=0.3.13.post1
folder=$(mktemp -d)
trap 'kill "${master:-}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check install --no-deps --only-binary :all: --target . \
  "mooncake-transfer-engine-non-cuda==$VERSION"
read -r rpc http < <(python3 - <<'PY'
import socket

kept = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in kept))
PY
)
chmod +x mooncake/mooncake_master
mooncake/mooncake_master -rpc_address=127.0.0.1 "-rpc_port=$rpc" -metrics_host=127.0.0.1 "-metrics_port=$http" \
  -default_kv_lease_ttl=2000 -logtostderr=true > log 2>&1 &
master=$!
for _ in $(seq 100); do curl --silent --max-time 2 --output page "http://127.0.0.1:$http/metrics" && break; sleep 0.1; done
echo "version: $VERSION"
timeout 100 python3 - "$rpc" "$http" 2>client <<'PY' || { tail -n 3 log client; exit 1; }
import sys
import time
import urllib.request

from mooncake.store import MooncakeDistributedStore

rpc, http = sys.argv[1:]
NAMES = ("total_get_nums_", "mem_cache_hit_nums_", "mem_cache_hit_bytes_total")
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", f"127.0.0.1:{rpc}") == 0


def counted():
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=10) as page:
        values = dict(line.split() for line in page.read().decode().splitlines() if line.startswith(NAMES))
    return [int(float(values[name])) for name in NAMES]


def grown(says, *asked):
    before = counted()
    for ask in asked:
        ask()
    time.sleep(0.5)
    grown = [after - known for after, known in zip(counted(), before, strict=True)]
    print(f"{says}:", dict(zip(NAMES, grown, strict=True)))
    return grown


def seconds_until_removed(key):
    began = time.monotonic()
    while store.remove(key) < 0:
        if time.monotonic() - began > 30:
            return 30.0
        time.sleep(0.1)
    return time.monotonic() - began


held = [f"held-{number}" for number in range(3)]
for key in held:
    assert store.put(key, b"x" * 1000) == 0
asked = [*held, *(f"never-{number}" for number in range(7))]
found = store.batch_is_exist(asked)
questions = grown("batch_is_exist of ten keys", lambda: store.batch_is_exist(asked))
reads = grown("a read of the three that exist", lambda: store.get_batch([k for k, f in zip(asked, found) if f == 1]))
size = grown("get_size of one", lambda: store.get_size(held[0]))
store.put("asked", b"x")
store.put("left", b"x")
store.is_exist("asked")
leased, free = seconds_until_removed("asked"), seconds_until_removed("left")
print(f"removed after is_exist: after {leased:.1f} s; without a question: after {free:.1f} s (a lease of 2 s)")
as_seen = found == [1] * 3 + [0] * 7 and (questions, reads, size) == ([0, 0, 0], [3, 3, 3000], [1, 1, 1000])
sys.exit(0 if as_seen and leased >= 1.5 > free else "CHANGED: it counts, or leases, otherwise")
PY
echo "As seen: three gets and three hits of ten keys."
