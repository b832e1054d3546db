"""Chat templates with the constructs of well-known families, and requests of many shapes: our own rendering of each
must equal vLLM's. The engines' own Python reads this module as well.
"""

import json
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path


def digest(prompt: str) -> str:
    return sha256(prompt.encode()).hexdigest()[:12]


_TAIL = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEMPLATES: dict[str, object] = {
    "plain": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}" + _TAIL,
    "everything": "{{ messages | tojson }}{{ (tools or 0) | tojson }}{{ reasoning_effort }}{{ enable_thinking }}"
    "{{ (documents or 0) | tojson }}{{ add_generation_prompt }}{{ custom }}",
    "parts": "{% for m in messages %}<|{{ m['role'] }}|>{% for p in m['content'] %}[{{ p['text'] }}{{ p | tojson }}]"
    "{% endfor %}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<|end|>{% endfor %}" + _TAIL,
    "parts by a macro": "{% macro said(what) %}{% if what is string %}{{ what }}{% else %}{% for p in what %}"
    "({{ p.type }}:{{ p.text }}){% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ said(m.content) }}<|end|>{% endfor %}" + _TAIL,
    "parts of another list": "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% set all = messages | list %}{% for m in all %}<|{{ m.role }}|>{% set content = m.content %}"
    "{% for p in content %}{{ p.text if p is mapping else p }}{% endfor %}<|end|>{% endfor %}{{ rest | length }}"
    + _TAIL,
    "calls as they are": "{{ bos_token }}{% for m in messages %}{% if m.tool_calls is defined %}[CALLS]"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{{ c.id }}{% endfor %}{% elif m.role == 'tool' %}"
    "[RESULT {{ m.tool_call_id }}]{{ m.content | string }}{% else %}[{{ m.role }}]{{ m.content }}"
    "{% endif %}{% endfor %}",
    "system first": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system comes first') }}{% endif %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}" + _TAIL,
    "thoughts": "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning is defined %}<think>{{ m.reasoning }}</think>"
    "{% endif %}{{ m.content or '' }}<|end|>{% endfor %}{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{{ reasoning_effort | default('medium') }}" + _TAIL,
    "a known effort": "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'high', 'none'] %}"
    "{{ raise_exception('effort: low, high or none') }}{% endif %}{% if reasoning_effort == 'none' %}quick{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "developers": "{% for m in messages %}{% if m.role == 'developer' %}# {{ m.content }} {{ (m.tools or 0) | tojson }}"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}" + _TAIL,
    "trained parts": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}{% else %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endif %}{% endfor %}" + _TAIL,
    "two templates": [
        {"name": "default", "template": "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"},
        {
            "name": "tool_use",
            "template": "{% for t in tools %}{{ t.function.name }}({{ t.function.parameters | tojson(indent=1) }})"
            "{% endfor %}{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}",
        },
    ],
    "latest question": "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% if ns.last < 0 and "
    "m.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if loop.index0 > ns.last and m.reasoning_content is string %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content if m.content is string else '' }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function or c %}{{ f.name }} {{ f.arguments | tojson }}"
    "{% endfor %}<|end|>{% endfor %}" + _TAIL,
}

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": "a file"}}, "required": ["path"]}
_TOOL = {"type": "function", "function": {"parameters": _SCHEMA, "name": "read", "description": "reads"}}
_CALL = {
    "type": "function",
    "function": {"name": "read", "arguments": '{"path": "a", "at": [1, null]}'},
    "id": "call_1",
}
_HI = {"role": "user", "content": "hi"}
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _call(arguments: object, **more: object) -> dict[str, object]:
    return {**_CALL, "function": {"name": "read", "arguments": arguments}, **more}


def _said(*messages: object, **more: object) -> dict[str, object]:
    return {"messages": [_HI, *messages], **more}


def _assistant(**more: object) -> dict[str, object]:
    return {"role": "assistant", "content": "so", **more}


def _text(text: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": text, **more}


def _result(content: object, **more: object) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": "call_1", "content": content, **more}


_LOOP = (_assistant(content=None, tool_calls=[_CALL]), _result("42"))
CHATS: dict[str, dict[str, object]] = {
    "one question": _said(),
    "system": {"messages": [{"role": "system", "content": "be brief"}, _HI]},
    "system in parts": {"messages": [{"role": "system", "content": [_text("be"), _text("brief")]}, _HI]},
    "billing line": {"messages": [{"role": "system", "content": "x-anthropic-billing-header: a\nbe brief"}, _HI]},
    "billing line alone": {
        "messages": [{"role": "system", "content": [_text("x-anthropic-billing-header: a"), _text("be")]}, _HI]
    },
    "developer": {"messages": [{"role": "developer", "content": "be brief"}, _HI]},
    "developer behind system": {
        "messages": [{"role": "system", "content": "a"}, {"role": "developer", "content": [_text("b")]}, _HI]
    },
    "developer later": _said({"role": "developer", "content": "b"}, _assistant(), _HI),
    "parts": _said({"role": "user", "content": [_text("a"), _text("b")]}),
    "no parts": _said(_assistant(content=[]), _HI),
    "empty parts": _said(
        {"role": "user", "content": ["", _text("a"), _text("")]}, _assistant(content=[_text("")]), _HI
    ),
    "part with a field of its own": _said({"role": "user", "content": [_text("a", mark="m")]}),
    "part with cache_control": _said({"role": "user", "content": [_text("a", cache_control={"type": "ephemeral"})]}),
    "refusal with a field of its own": _said(_assistant(content=[{"type": "refusal", "refusal": "no", "why": 1}]), _HI),
    "refusal": _said(_assistant(content=[{"type": "refusal", "refusal": "no"}]), _HI),
    "refusal beside content": _said(_assistant(refusal="no"), _HI),
    "thinking part": _said(_assistant(content=[{"type": "thinking", "thinking": "hm"}, _text("b")]), _HI),
    "empty text": _said(_assistant(content=""), {"role": "user", "content": ""}),
    "no content": _said(_assistant(content=None), _HI),
    "surrounding spaces": _said(_assistant(content="  a \n"), {"role": "user", "content": " b\n\n"}),
    "name": _said({"role": "user", "content": "a", "name": "ann"}),
    "unknown field": _said({"role": "user", "content": "a", "weight": 3}),
    "own role": _said({"role": "critic", "content": "a"}),
    "reasoning": _said(_assistant(reasoning="hm"), _HI),
    "reasoning_content": _said(_assistant(reasoning_content="hm"), _HI),
    "both reasonings": _said(_assistant(reasoning="one", reasoning_content="two"), _HI),
    "empty reasoning": _said(_assistant(reasoning="", reasoning_content="two"), _HI),
    "reasoning of a user": _said({"role": "user", "content": "a", "reasoning": "hm"}),
    "tools": _said(tools=[_TOOL]),
    "tool without description": _said(tools=[{"type": "function", "function": {"name": "read"}}]),
    "strict tool": _said(tools=[{"type": "function", "function": {"strict": True, "name": "read", "parameters": {}}}]),
    "deferred tool": _said(tools=[{**_TOOL, "defer_loading": True}]),
    "tool with a field of its own": _said(
        tools=[{**_TOOL, "function": {"name": "read", "more": 1}, "cache_control": {}}]
    ),
    "tools and choice none": _said(tools=[_TOOL], tool_choice="none"),
    "tool loop": _said(*_LOOP, tools=[_TOOL]),
    "tool loop with text": _said(_assistant(tool_calls=[_CALL]), _result("42"), tools=[_TOOL]),
    "tool loop with reasoning": _said(_assistant(reasoning_content="hm", tool_calls=[_CALL]), _result("42")),
    "two calls": _said(
        _assistant(content=None, tool_calls=[_CALL, {**_CALL, "id": "call_2"}]), _result("1"), _result("2")
    ),
    "result in parts": _said(_LOOP[0], _result([_text("a"), _text("b")])),
    "empty result": _said(_LOOP[0], _result("")),
    "result in empty parts": _said(_LOOP[0], _result([_text(""), _text("a"), _text("")])),
    "result with a name": _said(_LOOP[0], _result("42", name="read")),
    "no arguments": _said(_assistant(content=None, tool_calls=[_call("")]), _result("42")),
    "broken arguments": _said(_assistant(content=None, tool_calls=[_call('{"path": ')]), _result("42")),
    "arguments that are a list": _said(_assistant(content=None, tool_calls=[_call("[1]")]), _result("42")),
    "no calls": _said(_assistant(tool_calls=[]), _HI),
    "call with an index": _said(_assistant(content=None, tool_calls=[{**_CALL, "index": 0}]), _result("42")),
    "call with a field of its own": _said(
        _assistant(content=None, tool_calls=[{**_CALL, "function": {"own": 1, **_call("{}")["function"]}}]),
        _result("42"),
    ),
    "system later": _said({"role": "system", "content": "mind"}, _HI),
    "highest effort": _said(reasoning_effort="max"),
    "effort": _said(reasoning_effort="low"),
    "effort of none": _said(reasoning_effort="none"),
    "effort and own thinking": _said(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}),
    "no thinking": _said(chat_template_kwargs={"enable_thinking": False}),
    "own argument": _said(chat_template_kwargs={"custom": "c", "unknown": 1}),
    "own effort": _said(chat_template_kwargs={"reasoning_effort": "low"}),
    "documents": _said(documents=[{"title": "t", "text": "x"}]),
    "no generation prompt": _said(_assistant(), add_generation_prompt=False),
    "generation prompt by argument": _said(chat_template_kwargs={"add_generation_prompt": False}),
    "response format": _said(response_format={"type": "json_object"}),
    "assistant last": _said(_assistant()),
    "parts that are texts": _said({"role": "user", "content": ["a", _text("b"), "c"]}),
    "parts of responses": _said(
        _assistant(content=[{"type": "output_text", "text": "a"}]),
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
    ),
    "parts of null": _said({"role": "user", "content": [_text(None), {"type": "refusal", "refusal": None}]}),
    "output of null": _said(_assistant(content=[{"type": "output_text", "text": None}])),
    "a part of no type": _said({"role": "user", "content": [{"text": "a"}]}),
    "a part of an unknown type": _said({"role": "user", "content": [_text("a"), {"type": "own", "own": "b"}]}),
    "a part by its uuid": _said({"role": "user", "content": [{"type": "image_url", "uuid": "u"}]}),
    "an image": _said({"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PIXEL}}]}),
    "a text with a uuid": _said({"role": "user", "content": [_text("a", uuid="u")]}),
    "sound": _said(
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}
    ),
    "a file": _said({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}),
    "embeddings": _said({"role": "user", "content": [{"type": "image_embeds", "image_embeds": ""}]}),
    "a tool that is named": _said(
        {"role": "user", "content": [_text("a"), {"type": "tool_reference", "name": "read"}]}
    ),
    "a result that names a tool": _said(_LOOP[0], _result([{"type": "tool_reference", "name": "read"}, _text("a")])),
    "billing line of another type": {
        "messages": [
            {"role": "system", "content": [{"type": "input_text", "text": "x-anthropic-billing-header: a\nb"}, "c"]},
            _HI,
        ]
    },
    "billing line among texts": {
        "messages": [{"role": "system", "content": ["x-anthropic-billing-header: a", "x-anthropic-billing-header\nb"]}]
    },
    "developer with tools": {"messages": [{"role": "developer", "content": "a", "tools": [_TOOL]}, _HI]},
    "task": _said({"role": "user", "content": "a", "task": "translate"}),
    "a name that is no text": _said({"role": "user", "content": "a", "name": 3}),
    "a call of no type": _said(_assistant(tool_calls=[{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}])),
    "a call of another type": _said(_assistant(tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f"}}])),
    "arguments as an object": _said(_assistant(content=None, tool_calls=[_call({"path": "a"})]), _result("42")),
    "a result of no call": _said({"role": "tool", "content": "42"}),
    "calls of a user": _said({"role": "user", "content": "a", "tool_calls": [_CALL]}),
    "a function's call": _said(_assistant(content=None, function_call={"name": "read", "arguments": "{}"})),
    "a function's result": _said({"role": "function", "name": "read", "content": "42"}),
    "sound of an assistant": _said(_assistant(audio={"id": "a"}), _HI),
    "reasoning of null": _said(_assistant(reasoning=None, reasoning_content="two"), _HI),
    "two thinking parts": _said(_assistant(content=[{"type": "thinking", "thinking": t} for t in ("a", "b")]), _HI),
    "no messages": {"messages": []},
    "a tool of another type": _said(tools=[{"type": "custom", "custom": {"name": "f"}}]),
    "no tools": _said(tools=[]),
    "tool choice required": _said(tools=[_TOOL], tool_choice="required"),
}


def _anthropic(*messages: object, **more: object) -> dict[str, object]:
    return {"messages": [_HI, *messages], "max_tokens": 2000, **more}


_USE = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}
_OUT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}
_BLOCK = {"name": "read", "description": "reads", "input_schema": {"properties": {}}}
ANTHROPIC: dict[str, dict[str, object]] = {
    "m: one question": _anthropic(),
    "m: claude code": _anthropic(
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, _text("so"), _USE]},
        {"role": "user", "content": [_OUT, _text("go on", cache_control={"type": "ephemeral"})]},
        system=[_text("x-anthropic-billing-header: cch=1"), _text("be brief"), _text(" and kind")],
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": []},
        tools=[_BLOCK],
    ),
    "m: billing line in a text": _anthropic(
        {"role": "system", "content": "x-anthropic-billing-header: b\nmind"},
        system="x-anthropic-billing-header: a\nbe brief",
    ),
    "m: effort": _anthropic(output_config={"effort": "low"}),
    "m: thinking off": _anthropic(thinking={"type": "disabled"}),
    "m: thinking off and effort": _anthropic(thinking={"type": "disabled"}, output_config={"effort": "high"}),
    "m: thinking on": _anthropic(thinking={"type": "enabled", "budget_tokens": 1024}),
    "m: format": _anthropic(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
    "m: reminder": _anthropic({"role": "system", "content": "mind"}, system="be brief"),
    "m: thought alone": _anthropic({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, _HI),
    "m: parts": _anthropic({"role": "user", "content": [_text("one"), _text("two")]}),
    "m: call without input": _anthropic(
        {"role": "assistant", "content": [{**_USE, "input": {}}]}, {"role": "user", "content": [_OUT]}
    ),
    "m: redacted": _anthropic({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, _HI),
    "m: result in parts": _anthropic(
        {"role": "assistant", "content": [_USE]},
        {"role": "user", "content": [{**_OUT, "content": [_text("a"), _text("b")], "is_error": True}]},
    ),
    "m: deferred tool": _anthropic(tools=[{**_BLOCK, "defer_loading": True, "strict": True}]),
    "m: text with citations": _anthropic({"role": "assistant", "content": [_text("a", citations=[])]}, _HI),
    "m: no tools": _anthropic(tools=[]),
    "m: several system blocks": _anthropic(
        system=[_text("be brief", cache_control={"type": "ephemeral"}), _text(""), _text("be kind")]
    ),
    "m: text before a result": _anthropic(
        {"role": "assistant", "content": [_USE]}, {"role": "user", "content": [_text("wait"), _OUT, _text("go on")]}
    ),
    "m: two calls at once": _anthropic(
        {"role": "assistant", "content": [_text("both"), _USE, {**_USE, "id": "toolu_2"}]},
        {"role": "user", "content": [{**_OUT, "is_error": True}, {**_OUT, "tool_use_id": "toolu_2", "content": []}]},
    ),
    "m: result without content": _anthropic(
        {"role": "assistant", "content": [_USE]}, {"role": "user", "content": [{**_OUT, "content": None}]}
    ),
    "m: empty text": _anthropic({"role": "assistant", "content": [_text("")]}, _HI),
    "m: reminder in blocks": _anthropic({"role": "system", "content": [_text(" mind "), _text("this")]}, _HI),
    "m: a tool by name": _anthropic(
        tools=[_BLOCK, {**_BLOCK, "name": "write"}], tool_choice={"type": "tool", "name": "write"}
    ),
    "m: no tool": _anthropic(tools=[_BLOCK], tool_choice={"type": "none"}),
    "m: two thoughts": _anthropic(
        {"role": "assistant", "content": [{"type": "thinking", "thinking": t, "signature": ""} for t in ("a", "b")]},
        _HI,
        thinking={"type": "adaptive"},
    ),
    "m: highest effort": _anthropic(thinking={"type": "adaptive"}, output_config={"effort": "xhigh"}),
    "m: compaction": _anthropic(
        {"role": "assistant", "content": [_text("so"), _USE]},
        {"role": "user", "content": [_OUT, _text("summarise what was said")]},
        system=[_text("you summarise")],
        max_tokens=20_000,
    ),
    "m: result that names a tool": _anthropic(
        {"role": "assistant", "content": [_USE]},
        {
            "role": "user",
            "content": [{**_OUT, "content": [_text("a"), {"type": "tool_reference", "tool_name": "read"}]}],
        },
        tools=[{**_BLOCK, "defer_loading": True}],
    ),
    "m: image": _anthropic({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": _PIXEL}}]}),
    "m: result of an assistant": _anthropic({"role": "assistant", "content": [_OUT]}, _HI),
    "m: document": _anthropic({"role": "user", "content": [{"type": "document", "source": {}}]}),
    "m: a tool that is named": _anthropic({"role": "user", "content": [{"type": "tool_reference"}, _text("a")]}),
    "m: no system": _anthropic(system=""),
    "m: no blocks": _anthropic({"role": "user", "content": []}),
    "m: own argument": _anthropic(chat_template_kwargs={"enable_thinking": False, "custom": "c"}),
}
_DONE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
_ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
_MADE = {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path": "a"}'}
_CAME = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
_FUNCTION = {"type": "function", "name": "read", "description": "reads", "parameters": _SCHEMA, "strict": False}
OPENAI: dict[str, dict[str, object]] = {
    "r: text": {"input": "hi"},
    "r: instructions": {"input": "hi", "instructions": "be brief"},
    "r: codex": {
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "may read"}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            *(_ASKED, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
            *(_MADE, _CAME, _DONE, _ASKED),
        ],
        "instructions": "be brief",
        "reasoning": {"summary": "auto"},
        "tools": [
            _FUNCTION,
            {"type": "namespace", "name": "web", "description": "d", "tools": [{**_FUNCTION, "name": "open"}]},
            {"type": "web_search"},
        ],
    },
    "r: effort": {"input": "hi", "reasoning": {"effort": "low"}},
    "r: effort of none": {"input": "hi", "reasoning": {"effort": "none"}},
    "r: summary of thoughts": {
        "input": [_ASKED, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}]
    },
    "r: thoughts twice": {
        "input": [_ASKED, *[{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}] * 2, _DONE]
    },
    "r: call of a namespace": {"input": [_ASKED, {**_MADE, "namespace": "web"}, _CAME]},
    "r: two calls": {"input": [_ASKED, _MADE, {**_MADE, "call_id": "call_2"}, _CAME, {**_CAME, "call_id": "call_2"}]},
    "r: output in parts": {"input": [_ASKED, _MADE, {**_CAME, "output": [{"type": "input_text", "text": "a"}]}]},
    "r: parts with fields of their own": {
        "input": [{**_ASKED, "content": [{"type": "input_text", "text": "hi", "own": 1, "cache_control": {}}]}]
    },
    "r: call, then text": {"input": [{"role": "developer", "content": "do"}, _MADE, _DONE, _CAME]},
    "r: answer as text": {"input": [_ASKED, {"role": "assistant", "content": "so"}, _ASKED]},
    "r: two texts of an answer": {
        "input": [_ASKED, {**_DONE, "content": [*_DONE["content"], *_DONE["content"]]}, _ASKED]
    },
    "r: free text": {
        "input": [
            _ASKED,
            {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": "é\n*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"},
        ],
        "tools": [_FUNCTION, {"type": "custom", "name": "patch", "description": "patches"}],
    },
    "r: free text by a grammar": {
        "input": "hi",
        "tools": [
            {
                **{"type": "custom", "name": "patch", "description": "patches"},
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
            }
        ],
    },
    "r: phases": {
        "input": [_ASKED, {**_DONE, "phase": "commentary"}, _MADE, _CAME, {**_DONE, "phase": "final_answer"}, _ASKED]
    },
    "r: thoughts, then a call": {
        "input": [_ASKED, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, _MADE, _CAME],
        "reasoning": {"effort": "medium", "summary": "auto"},
    },
    "r: a tool by name": {"input": "hi", "tools": [_FUNCTION], "tool_choice": {"type": "function", "name": "read"}},
    "r: no tool": {"input": "hi", "tools": [_FUNCTION], "tool_choice": "none"},
    "r: built-in tools alone": {"input": "hi", "tools": [{"type": "web_search"}]},
    "r: encrypted thoughts": {"input": [_ASKED, {"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
    "r: a reference": {"input": [_ASKED, {"type": "item_reference", "id": "msg_1"}]},
    "r: a search": {"input": [_ASKED, {"type": "web_search_call", "id": "ws_1", "status": "completed"}]},
    "r: image": {
        "input": [{**_ASKED, "content": [{"type": "input_image", "image_url": _PIXEL, "detail": "auto"}]}],
    },
    "r: own argument": {"input": "hi", "chat_template_kwargs": {"custom": "c"}},
}
SHAPES: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (CHAT, document) for name, document in CHATS.items()},
    **{name: (MESSAGES, document) for name, document in ANTHROPIC.items()},
    **{name: (RESPONSES, document) for name, document in OPENAI.items()},
}


def folder_with(template: object, model: str) -> str:
    folder = Path(tempfile.mkdtemp()) / "model"
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"chat_template": template, "bos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)
