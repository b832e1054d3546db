#!/usr/bin/env bash
# Qwen Code repeats a request that a gateway refuses with 429 and `x-should-retry: false` seven times, and not only once.
#
# Expected before the run: one request, as OpenAI's clients obey that header. Seen: it asks seven times, each after the
# Retry-After, then shows "Retrying in 60s (attempt 1/10)". When told an hour, as for a budget that is spent, it waits.
# The answer below is a valid error of the chat API from a server on the loopback. A download of 30 MB.
set -euo pipefail
VERSION=0.24.4
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 npm install --no-audit --no-fund --loglevel=error --prefix . "@qwen-code/qwen-code@$VERSION" >/dev/null
cat > server.py <<'PY'
import http.server
import json
import sys


class Refusals(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        error = {"message": "not now", "type": "rate_limit_error", "param": None, "code": "busy"}
        body = json.dumps({"error": error}).encode()
        self.send_response(429)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", "1")
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(body)
        print(self.path, file=sys.stderr, flush=True)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusals)
print(server.server_port, flush=True)
server.serve_forever()
PY
python3 server.py >port 2>posts &
for _ in $(seq 100); do [ -s port ] && break; sleep 0.1; done
export HOME=$folder OPENAI_API_KEY=x OPENAI_MODEL=tiny CI=1
OPENAI_BASE_URL="http://127.0.0.1:$(cat port)/v1"
export OPENAI_BASE_URL
echo "version: $(node_modules/.bin/qwen --version)"
mkdir work
(cd work && exec timeout 150 ../node_modules/.bin/qwen -p "say done" --auth-type openai </dev/null >../said 2>&1) & turn=$!
for _ in $(seq 150); do [ "$(grep -c chat/completions posts)" -ge 7 ] && break; kill -0 $turn 2>/dev/null || break; sleep 1; done
posts=$(grep -c chat/completions posts || true)
echo "requests: $posts; on the screen: $(tail -c 300 said)"
[ "$posts" -ge 7 ] || { echo "CHANGED: it obeys the header"; exit 1; }
echo "As seen: it asks again although it should not."
