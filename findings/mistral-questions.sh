#!/usr/bin/env bash
# With mistral-common each new question of a session moves the tools, in the older format the system prompt too, behind
# the answers, so that nothing after the beginning is cached.
#
# Expected before the run: a next turn's prompt begins with the whole last prompt, so its KV is read from the cache. Seen:
# so it is while tools answer, but the next question takes the list of tools from before the last question to before
# itself. In the format v3 (tekken: Nemo, Pixtral) the system prompt moves with it and two prompts share one token; in v7
# they share the system prompt. Without tools v7 keeps the whole prompt, v3 two tokens. A router that bets on a session's
# whole history loses exactly with the users who ask again. A download of 12 MB and of what it requires.
set -euo pipefail
VERSION=1.13.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
timeout 500 venv/bin/pip --quiet --disable-pip-version-check --no-input install "mistral-common==$VERSION" \
  sentencepiece==0.2.1 2>/dev/null
cat > share.py <<'PY'
import sys
from importlib.metadata import version

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look a thing up.", "parameters": QUERY}}


def turn(number):
    """A question, its call of a tool, the tool's answer and the answer."""
    call = {"id": f"abcdefgh{number}", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
    return [
        {"role": "user", "content": f"What is number {number}? " * 10},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": "It is blue. " * 10},
        {"role": "assistant", "content": f"Number {number} is blue. " * 10},
    ]


def shared(one, other):
    """Length of the common beginning."""
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


print("version:", version("mistral-common"))
messages = [{"role": "system", "content": "You are helpful. " * 10}, *turn(0), *turn(1), *turn(2)]
found = {}
for name, tokenizer in {"v3": MistralTokenizer.v3(is_tekken=True), "v7": MistralTokenizer.v7()}.items():
    for tools in ([TOOL], None):
        prompts = [
            tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages[:end], tools=tools)).tokens
            for end in (2, 4, 6, 8)  # a question, its tool's answer, the next question, its tool's answer
        ]
        beside = [(len(a), shared(a, b)) for a, b in zip(prompts, prompts[1:])]
        after_tool, next_question, after_next_tool = beside
        assert all(length == same for length, same in (after_tool, after_next_tool))
        print(f"{name}, {'tools' if tools else 'no tools'}: the next question's prompt shares", next_question[1], end=" ")
        print("of", next_question[0], "tokens with the last; after a tool's answer all", after_next_tool[0])
        found[name, bool(tools)] = next_question
system = found["v7", True][1]
as_seen = found["v3", True][1] == 1 and found["v3", False][1] == 2 and 40 < system < found["v7", True][0] / 2
as_seen = as_seen and found["v7", False][0] == found["v7", False][1]
sys.exit(0 if as_seen else f"CHANGED: {found}")
PY
timeout 200 venv/bin/python share.py
echo "As seen: a next question shares no more than the system prompt."
