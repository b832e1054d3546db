"""The requests that an engine's server accepts: each path with its methods, and the fields of the request.

    python -m router.tests.engines.surface vllm-0.33.0-….whl > router/tests/engines/vllm.json

It reads the sources in a wheel (`pip download --no-deps vllm==0.33.0`) without importing them: route decorators,
`add_api_route`, `Mount`, and the classes that their handlers take, including inherited fields.
"""

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

SERVERS = {"vllm": "vllm/entrypoints/", "sglang": "sglang/srt/entrypoints/"}
# A supervisor, a placeholder while an engine is preloaded, and a bootstrap server are separate processes
OTHER_PROCESSES = ("launchers/dp_supervisor.py", "cli/preload.py", "engine_info_bootstrap_server.py")
VERBS = ("get", "post", "put", "delete", "patch", "head", "options", "websocket")
FASTAPI = ("/docs", "/docs/oauth2-redirect", "/openapi.json", "/redoc")
ALIASES = (ast.Assign, ast.AnnAssign)
FORM = ("Form", "File")
Taken = tuple[tuple[ast.expr, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    methods: tuple[str, ...]
    module: str
    takes: tuple[ast.expr, ...] = ()  # annotations of the handler's arguments
    form: tuple[str, ...] = ()  # fields of a form


@dataclass
class Sources:
    """The modules of a package by path."""

    modules: dict[str, ast.Module] = field(default_factory=dict)

    @cached_property
    def classes(self) -> dict[str, list[tuple[str, ast.ClassDef]]]:
        by_name: dict[str, list[tuple[str, ast.ClassDef]]] = {}
        for module, tree in self.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    by_name.setdefault(node.name, []).append((module, node))
        return by_name

    @cached_property
    def aliases(self) -> dict[str, list[tuple[str, ast.expr]]]:
        """Return names of unions and generics, such as `ScoreRequest: TypeAlias = ScoreDataRequest
        | ScoreTextRequest`.
        """
        by_name: dict[str, list[tuple[str, ast.expr]]] = {}
        for module, tree in self.modules.items():
            for node in tree.body:
                if isinstance(node, ALIASES) and node.value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        if isinstance(target, ast.Name):
                            by_name.setdefault(target.id, []).append((module, node.value))
        return by_name

    def nearest(self, known: list[tuple[str, Any]], module: str) -> tuple[str, Any] | None:
        """Return the definition whose file shares the longest path with the module."""
        return max(known, key=lambda one: len(_common(one[0], module)), default=None)

    def fields(self, name: str, module: str, seen: frozenset[str] = frozenset()) -> set[str]:
        if name in seen:
            return set()
        seen |= {name}
        known = self.nearest(self.classes.get(name, []), module)
        if known is not None:
            own, class_ = known[0], known[1]
            inherited = (self.fields(base, own, seen) for base in _names(class_.bases))
            return set(_declared(class_)).union(*inherited)
        alias = self.nearest(self.aliases.get(name, []), module)
        if alias is None:
            return set()
        return set[str]().union(*(self.fields(part, alias[0], seen) for part in _names([alias[1]])))


def _common(one: str, other: str) -> str:
    size = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:size]


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
                yield part.value  # a forward reference


def _declared(class_: ast.ClassDef) -> Iterator[str]:
    """Return the names of fields, and the aliases that clients may use for them."""
    for node in class_.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            continue
        yield node.target.id
        for call in ast.walk(node):
            if isinstance(call, ast.keyword) and call.arg in ("alias", "validation_alias"):
                yield from _names([call.value])


def routes(sources: Sources, under: str) -> Iterator[Route]:
    for module, tree in sources.modules.items():
        if not module.startswith(under) or module.endswith(OTHER_PROCESSES):
            continue
        prefixes = _prefixes(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = _taken(node.args)
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call):
                        yield from _declared_by(decorator, module, prefixes, taken)
            elif isinstance(node, ast.Call):
                yield from _added_by(node, module, prefixes)


def _taken(args: ast.arguments) -> Taken:
    """Return the annotations of a handler's arguments, and the arguments that are themselves fields of a form."""
    annotations = tuple(arg.annotation for arg in args.args if arg.annotation is not None)
    given = zip(args.args[len(args.args) - len(args.defaults) :], args.defaults, strict=True)
    form = [arg.arg for arg, value in given if isinstance(value, ast.Call) and ast.unparse(value.func) in FORM]
    return annotations, tuple(form)


def _prefixes(tree: ast.Module) -> dict[str, str]:
    """Return the path prefix of each router in the module."""
    by_name = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            given = next((one.value for one in node.value.keywords if one.arg == "prefix"), None)
            if isinstance(given, ast.Constant):
                by_name[node.targets[0].id] = str(given.value)
    return by_name


def _declared_by(call: ast.Call, module: str, prefixes: dict[str, str], taken: Taken) -> Iterator[Route]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in (*VERBS, "api_route"):
        return
    path = _path(call)
    if path is not None:
        methods = _methods(call) if call.func.attr == "api_route" else (call.func.attr.upper(),)
        yield Route(prefixes.get(_owner(call), "") + path, methods, module, *taken)


def _added_by(call: ast.Call, module: str, prefixes: dict[str, str]) -> Iterator[Route]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    path = _path(call) if name in ("add_api_route", "Mount") else None
    if path is not None:
        yield Route(prefixes.get(_owner(call), "") + path, _methods(call), module)


def _owner(call: ast.Call) -> str:
    """Return the name of the router to which a route is added."""
    return call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""


def _path(call: ast.Call) -> str | None:
    """Return the path as written, or the default of its environment variable."""
    given = call.args[0] if call.args else next((one.value for one in call.keywords if one.arg == "path"), None)
    if isinstance(given, ast.Call) and len(given.args) == 2:
        given = given.args[1]
    if not isinstance(given, ast.Constant) or not isinstance(given.value, str) or not given.value.startswith("/"):
        return None
    return re.sub(r":\w+}", "}", given.value)  # a converter, such as {model:path}


def _methods(call: ast.Call) -> tuple[str, ...]:
    given = next((one.value for one in call.keywords if one.arg == "methods"), None)
    return tuple(ast.literal_eval(given)) if isinstance(given, ast.List) else ("GET",)


def _headers(sources: Sources, under: str) -> set[str]:
    """Return the names by which handlers read headers: literals with an `x-`."""
    nodes = (node for module, tree in sources.modules.items() if module.startswith(under) for node in ast.walk(tree))
    texts = (node.value.lower() for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in texts if re.fullmatch(r"x-[a-z0-9-]{2,60}", text)}


def read(wheel: Path) -> dict[str, Any]:
    engine, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as files:
        named = [name for name in files.namelist() if name.startswith(f"{engine}/") and name.endswith(".py")]
        sources = Sources({name: ast.parse(files.read(name)) for name in named})
    under = SERVERS[engine]
    paths: dict[str, tuple[set[str], set[str]]] = {path: ({"GET"}, set()) for path in FASTAPI}
    for route in routes(sources, under):
        methods, fields = paths.setdefault(route.path, (set(), set()))
        methods |= set(route.methods)
        fields |= set(route.form)
        for name in _names(route.takes):
            fields |= sources.fields(name, route.module) if name != "Request" else set()
    return {
        "engine": engine,
        "version": version,
        "headers": sorted(_headers(sources, under)),
        "paths": {
            path: {"methods": sorted(paths[path][0]), "fields": sorted(paths[path][1])} for path in sorted(paths)
        },
    }


if __name__ == "__main__":
    json.dump(read(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
