#!/usr/bin/env bash
# Claude Code takes a model whose name it does not know for one with a context of a million tokens.
#
# Expected before the run: the 200,000 tokens of its usual models, or what the server says. Seen: 1m, on stderr, so a
# session behind a gateway with a model of 32,000 or 200,000 tokens is not compacted before the engine refuses a prompt.
# The answer below is a valid stream of the Messages API from a server on the loopback.
set -euo pipefail
VERSION=2.1.328
folder=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 npm install --no-audit --no-fund --loglevel=error --prefix . "@anthropic-ai/claude-code@$VERSION" >/dev/null
cat > server.py <<'PY'
import http.server
import json


class Messages(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"input_tokens": 10, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": [], "usage": usage}
        events = (
            {"type": "message_start", "message": {**message, "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        )
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Messages)
print(server.server_port, flush=True)
server.serve_forever()
PY
python3 server.py > port &
server=$!
for _ in $(seq 100); do [ -s port ] && break; sleep 0.1; done
export HOME=$folder ANTHROPIC_API_KEY=x ANTHROPIC_BASE_URL="http://127.0.0.1:$(cat port)" CI=1
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_TELEMETRY=1 DISABLE_AUTOUPDATER=1
claude=node_modules/.bin/claude
echo "version: $("$claude" --version)"
said=$(timeout 120 "$claude" -p "say done" --model tiny </dev/null 2>&1)
echo "$said"
grep -q "assumes a context window of 1m tokens" <<<"$said" || { echo "CHANGED: it assumes another window"; exit 1; }
echo "As seen: 1m tokens for a model that it does not know."
