#!/usr/bin/env bash
# The Mooncake master of PyPI takes --enable_kv_events, starts without a word, and publishes no KV events.
#
# Expected before the run: an option for events that `--help` explains makes the master publish what its store takes in
# and evicts, or the master refuses to start. Seen: it runs as without the option. Nothing listens at the endpoint, its
# log does not say why, and only /kv_events/status tells: "enabled": false. A router that waits for these events learns of
# no eviction. A download of 46 MB; no GPU; Debian: libibverbs1, libnuma1, libcurl4.
set -euo pipefail
VERSION=0.3.13.post1
folder=$(mktemp -d)
trap 'kill "${master:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check install --no-deps --only-binary :all: --target . \
  "mooncake-transfer-engine-non-cuda==$VERSION"
read -r rpc http events < <(python3 - <<'PY'
import socket

kept = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in kept))
PY
)
chmod +x mooncake/mooncake_master
mooncake/mooncake_master -rpc_address=127.0.0.1 "-rpc_port=$rpc" -metrics_host=127.0.0.1 "-metrics_port=$http" \
  -enable_kv_events=true "-kv_events_bind_endpoint=tcp://127.0.0.1:$events" -kv_events_backend_id=one -logtostderr=true \
  > log 2>&1 &
master=$!
for _ in $(seq 100); do
  status=$(curl --silent --max-time 2 "http://127.0.0.1:$http/kv_events/status") && break
  sleep 0.1
done
echo "version: $VERSION"
echo "status: ${status:-none}"
listens=$(python3 -c "import socket, sys; sys.exit(socket.socket().connect_ex(('127.0.0.1', $events)) != 0)" && echo yes || echo no)
echo "listens at its endpoint: $listens"
said=$(grep -i "kv.event\|zmq" log | grep -vc "Master service started" || true)
echo "lines of its log about events, besides its options: $said"
[ "$listens" = no ] && [ "$said" = 0 ] && grep -q '"enabled":false' <<<"${status:-}" ||
  { echo "CHANGED: it publishes, refuses or says why not"; exit 1; }
echo "As seen: the option is taken, and no events are published."
