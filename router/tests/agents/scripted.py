"""A server that lets a real vLLM compute each prompt, and answers in its place: a tiny model calls no tools.

Each turn of an agent is answered with a call of its shell and then, after the result, with a closing text. Requests
that vLLM refuses are passed on.

python router/tests/agents/scripted.py PORT URL
"""

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Document = dict[str, Any]
Event = tuple[str, Document]
COMMANDS = {  # by the name of the tool that runs a command
    "Bash": {"command": "echo hi", "description": "says hi"},
    "run_shell_command": {"command": "echo hi", "is_background": False, "description": "says hi"},
    "exec_command": {"cmd": "echo hi"},
    "shell_command": {"command": "echo hi"},
    "shell": {"command": ["echo", "hi"]},
}
LIMITS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}
FAR, FAR_COMMAND = "count far", "seq 1 5000"  # a turn that asks for much output
SAID = "done"
NAMED = re.compile(r"of (session \d+)")  # the conversation's name for itself


def shortened(path: str, body: Document) -> Document:
    """Return the request with the same prompt and one token of answer."""
    made = {name: value for name, value in body.items() if name not in (*LIMITS[path], "stream", "stream_options")}
    return {**made, LIMITS[path][0]: 1}


def last_turn(body: Document) -> Document:
    turns = body.get("messages") or body.get("input")
    return turns[-1] if isinstance(turns, list) and turns else {}


def tool_of(body: Document) -> str:
    """Return the shell among the tools; empty if the prompt ends with a tool's result, or there is none."""
    last = last_turn(body)
    content = last.get("content")
    blocks = content if isinstance(content, list) else []
    if last.get("role") == "tool" or any("result" in str(each.get("type")) for each in blocks):
        return ""
    if last.get("type") == "function_call_output" or "summary" in json.dumps(last)[-2000:]:
        return ""
    names = [each.get("name") or (each.get("function") or {}).get("name") for each in body.get("tools") or []]
    return next((name for name in COMMANDS if name in names), "")


# Events of each API, as vLLM sends them


def chat(body: Document, answer: Document, tool: str) -> Iterator[Event]:
    base = {"id": answer["id"], "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    call = {"index": 0, "id": f"call_{answer['id']}", "type": "function", "function": named(tool, body)}
    delta = {"role": "assistant", "tool_calls": [call]} if tool else {"role": "assistant", "content": SAID}
    yield "", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if tool else "stop"}
    yield "", {**base, "choices": [end]}
    yield "", {**base, "choices": [], "usage": answer["usage"]}


def messages(body: Document, answer: Document, tool: str) -> Iterator[Event]:
    usage = answer["usage"]
    whole = {"id": answer["id"], "type": "message", "role": "assistant", "model": body["model"], "content": []}
    yield "message_start", {"message": {**whole, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    use = {"type": "tool_use", "id": f"toolu_{answer['id']}", "name": tool, "input": {}}
    written = {"type": "input_json_delta", "partial_json": named(tool, body)["arguments"]}
    block, delta = (use, written) if tool else ({"type": "text", "text": ""}, {"type": "text_delta", "text": SAID})
    yield "content_block_start", {"index": 0, "content_block": block}
    yield "content_block_delta", {"index": 0, "delta": delta}
    yield "content_block_stop", {"index": 0}
    end = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": usage}
    yield "message_stop", {}


def responses(body: Document, answer: Document, tool: str) -> Iterator[Event]:
    text = {"type": "output_text", "text": SAID, "annotations": []}
    item = {"type": "message", "id": f"msg_{answer['id']}", "role": "assistant", "content": [text]}
    if tool:
        item = {
            "type": "function_call",
            "id": f"fc_{answer['id']}",
            "call_id": f"call_{answer['id']}",
            **named(tool, body),
        }
    item["status"] = "completed"
    whole = {"id": answer["id"], "object": "response", "created_at": 1, "model": body["model"], "status": "completed"}
    begun = {**whole, "status": "in_progress", "output": []}
    yield "response.created", {"response": begun, "sequence_number": 0}
    yield "response.output_item.added", {"output_index": 0, "item": item, "sequence_number": 1}
    yield "response.output_item.done", {"output_index": 0, "item": item, "sequence_number": 2}
    ended = {**whole, "output": [item], "usage": answer["usage"]}
    yield "response.completed", {"response": ended, "sequence_number": 3}


def named(tool: str, body: Document) -> Document:
    arguments = json.dumps(COMMANDS.get(tool))
    far = FAR in json.dumps(last_turn(body))
    return {"name": tool, "arguments": arguments.replace("echo hi", FAR_COMMAND) if far else arguments}


EVENTS = {"/v1/chat/completions": chat, "/v1/messages": messages, "/v1/responses": responses}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = ""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(*self.ask())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        if path not in EVENTS:
            return self.answer(*self.ask(body))
        print("asked:", *set(NAMED.findall(json.dumps(body))), flush=True)
        status, said = self.ask(shortened(path, body))
        if status != 200 or not body.get("stream"):
            return self.answer(status, said)
        events = EVENTS[path](body, json.loads(said), tool_of(body))
        return self.stream(events, named=path != "/v1/chat/completions")

    def ask(self, body: Document | None = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.engine + self.path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def answer(self, status: int, said: bytes) -> None:
        self.send_response(status)
        kind = "text/plain; version=0.0.4" if self.path == "/metrics" else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def stream(self, events: Iterator[Event], *, named: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for kind, data in events:
            head = f"event: {kind}\n" if named else ""
            written = json.dumps({"type": kind, **data} if named else data)
            self.wfile.write(f"{head}data: {written}\n\n".encode())
        self.wfile.write(b"" if named else b"data: [DONE]\n\n")
        self.close_connection = True


if __name__ == "__main__":
    Handler.engine = sys.argv[2]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
