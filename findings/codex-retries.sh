#!/usr/bin/env bash
# Codex repeats a request thirty times when a gateway refuses it with 503, five times as often as after a 429.
#
# Expected before the run: six requests, as after a 429, or one, as the answer says x-should-retry: false. Seen: it makes
# five requests for each of its six attempts at a stream; between them it waits for Retry-After, so a gateway that is
# full gets each refused request thirty times. A 429 with the code insufficient_quota ends it after one request.
# The answers below are valid errors of the Responses API from a server on the loopback. A download of 130 MB.
set -euo pipefail
VERSION=0.171.0
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 npm install --no-audit --no-fund --loglevel=error --prefix . "@openai/codex@$VERSION" >/dev/null
cat > server.py <<'PY'
import http.server
import json
import sys

STATUS, CODE = int(sys.argv[1]), sys.argv[2]


class Refusals(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        error = {"message": "not now", "type": CODE, "param": None, "code": CODE}
        self.refuse(STATUS, json.dumps({"error": error}).encode())
        print(self.path, file=sys.stderr, flush=True)

    def do_GET(self):
        self.refuse(404, b"{}")

    def refuse(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", "1")
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusals)
print(server.server_port, flush=True)
server.serve_forever()
PY
export HOME=$folder OPENAI_API_KEY=x CI=1
mkdir .codex work
requests() { # status, code: how many come before Codex gives up
  python3 server.py "$1" "$2" >port 2>posts & server=$!
  for _ in $(seq 100); do [ -s port ] && break; sleep 0.1; done
  cat > .codex/config.toml <<TOML
model = "tiny"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "http://127.0.0.1:$(cat port)/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
TOML
  (cd work && timeout 200 ../node_modules/.bin/codex exec --skip-git-repo-check "say done" </dev/null >../said 2>&1) || true
  kill "$server"
  grep -c /v1/responses posts
}
echo "version: $(node_modules/.bin/codex --version)"
often=$(requests 429 busy)
full=$(requests 503 busy)
spent=$(requests 429 insufficient_quota)
tail -n 1 said
echo "requests after 429: $often; after 503: $full; after a spent quota: $spent"
[ "$often $full $spent" = "6 30 1" ] || { echo "CHANGED: it repeats otherwise"; exit 1; }
echo "As seen: thirty requests after a 503."
