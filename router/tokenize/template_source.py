"""Parses a chat template's source with Jinja, like Hugging Face's `apply_chat_template`, and detects what it
supports."""

import datetime as dt
import json
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser


class Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, which marks training output and changes no text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda layout: dt.datetime.now().strftime(layout)
    return made


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """Write JSON without Jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def knows_developers(source: str) -> bool:
    return "'developer'" in source or '"developer"' in source


def wants_system_first(source: str) -> bool:
    """Return whether the template refuses a system message in the middle. As in vLLM, the test passes no other
    arguments."""
    try:
        _with_later_system(source, "t")
    except (jinja2.TemplateError, TypeError):
        return True
    return False


def keeps_later_system(source: str) -> bool:
    """Return whether a system message in the middle reaches the prompt, by SGLang's test."""
    try:
        return bool(source) and _MARK in _with_later_system(source, _MARK)
    except Exception:  # any failure means that it does not
        return False


_MARK = "__later__"


def _with_later_system(source: str, text: str) -> str:
    pairs = (("system", "t"), ("user", "t"), ("system", text), ("user", "t"))
    messages = [{"role": role, "content": said} for role, said in pairs]
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    return plain.from_string(source).render(messages=messages, add_generation_prompt=False)


def wants_parts(source: str) -> set[bool]:
    """Return whether the template loops over the parts of a message's content, by each version of vLLM; other templates
    receive one text. Since 0.33 vLLM also finds messages that a namespace keeps."""
    tree = environment().parse(source)
    return {_loops_over_content(tree, in_namespaces) for in_namespaces in (False, True)}


def loops_over_content(source: str, names: set[str]) -> bool:
    """Return whether a loop iterates over the content of a message that has one of these names."""
    loops = environment().parse(source).find_all(nodes.For)
    return any(_is_of(loop.iter, names, "content") for loop in loops)


class _Unclear(Exception):
    """The template cannot be analysed, not even by vLLM."""


def _named(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unclear
    return target.name


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Return the expression inside filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _is_of(node: nodes.Node | None, names: set[str], field: str = "") -> bool:
    """Return whether the node reads one of the variables, or a field of one."""
    node = _bare(node)
    if not field:
        return _read(node) in names
    if isinstance(node, nodes.Getattr):
        return node.attr == field and _read(node.node) in names
    is_item = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == field
    return is_item and _read(node.node) in names  # type: ignore[union-attr]


def _read(node: nodes.Node | None) -> str:
    """Return the name of a variable, or of one that a namespace keeps."""
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return node.name if isinstance(node, nodes.Name) else ""


def _messages_of(tree: nodes.Template, in_namespaces: bool) -> set[str]:
    """Return the variables of loops over the messages, whatever their names."""
    lists, assigned = {"messages"}, list(tree.find_all(nodes.Assign))
    for _ in range(len(assigned) + 1):  # a variable may be assigned from a later one
        found = {name for each in assigned for name in _kept(each, lists, in_namespaces)}
        if found <= lists:
            break
        lists |= found
    return {_named(each.target) for each in tree.find_all(nodes.For) if _is_of(each.iter, lists)}


def _kept(assigned: nodes.Assign, lists: set[str], in_namespaces: bool) -> list[str]:
    """Return the names under which an assignment keeps one of the lists."""
    target, value = assigned.target, assigned.node
    if _is_of(value, lists):
        if in_namespaces and not isinstance(target, nodes.Name):
            return [f"{target.name}.{target.attr}"] if isinstance(target, nodes.NSRef) else []
        return [_named(target)]
    made = isinstance(value, nodes.Call) and _read(value.node) == "namespace"
    if not in_namespaces or not made or not isinstance(target, nodes.Name):
        return []
    return [f"{target.name}.{each.key}" for each in value.kwargs if _is_of(each.value, lists)]  # type: ignore[attr-defined]


def _loops_over_content(tree: nodes.Template, in_namespaces: bool) -> bool:
    inside = {id(loop): macro for macro in tree.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)}
    try:
        messages = _messages_of(tree, in_namespaces)
        for loop in tree.find_all(nodes.For):
            macro = inside.get(id(loop))
            given = _given_content(tree, macro, messages) if macro is not None else {"content"}
            if _is_of(loop.iter, messages, "content") or _read(loop.iter) in given:
                _named(loop.target)
                return True
    except _Unclear:
        pass
    return False


def _given_content(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """Return the parameters through which a macro receives a message's content."""
    names = [each.name for each in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            pairs = [*zip(names, call.args, strict=False), *((each.key, each.value) for each in call.kwargs)]
            found |= {name for name, value in pairs if name in names and _is_of(value, messages, "content")}
    return found
