#!/usr/bin/env bash
# Vercel's AI SDK asks again after two and four seconds when a gateway tells it to wait for a minute or more.
#
# Expected before the run: it waits as long as Retry-After says, or gives up, as x-should-retry: false asks. Seen: below
# 60 s it waits for that time; from 60 s on it takes its own pauses, so who is told the longest wait comes back soonest.
# The answer below is a valid error of the chat API from a server on the loopback. A download of 5 MB.
set -euo pipefail
AI=7.0.173 COMPATIBLE=3.0.92
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
timeout 200 npm install --no-audit --no-fund --loglevel=error --prefix . "ai@$AI" "@ai-sdk/openai-compatible@$COMPATIBLE" >/dev/null
cat > ask.mjs <<'JS'
import { createServer } from "node:http";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";

const error = JSON.stringify({ error: { message: "not now", type: "rate_limit_error", param: null, code: "busy" } });

async function pauses(seconds) {
  const came = [];
  const server = createServer((request, answer) => {
    came.push(performance.now());
    request.resume();
    answer.writeHead(429, { "content-type": "application/json", "retry-after": seconds, "x-should-retry": "false" });
    answer.end(error);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
  const model = createOpenAICompatible({ name: "here", baseURL, apiKey: "x" })("tiny");
  await generateText({ model, prompt: "say done" }).catch(() => {});
  server.close();
  server.closeAllConnections();
  const waited = came.slice(1).map((at, number) => Math.round((at - came[number]) / 1000));
  console.log(`retry-after: ${seconds}: ${came.length} requests, pauses of ${waited.join(" and ")} s`);
  return waited.join();
}

const seen = [await pauses("1"), await pauses("6"), await pauses("60"), await pauses("3600")];
process.exit(seen.join(" ") === "1,1 6,6 2,4 2,4" ? 0 : 1);
JS
echo "version: ai $AI"
timeout 100 node ask.mjs || { echo "CHANGED: it waits otherwise"; exit 1; }
echo "As seen: the longest waits are the shortest."
