"""Binds names that compiled code would look up at each use: functions, classes and constants of modules that are not
compiled. A look-up takes 140 instructions, one in a module 270; a request made 140 of them.

Each becomes a `Final` of the module behind its imports, which mypyc keeps in C. Lines keep their numbers.
"""

import ast
import re
from collections.abc import Container
from functools import cache
from pathlib import Path

# What mypy or mypyc knows by its name
_KNOWN = {"__future__", "abc", "dataclasses", "enum", "math", "types", "typing"}
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_FINAL = "_FinalName"
Bound = dict[str, str]  # expression: name of its constant


def bound(source: str, compiled: Container[str], root: Path) -> str:
    """Return the source with bound names. `compiled`: modules that are compiled together."""
    tree = ast.parse(source)
    imports = [line for line in tree.body if isinstance(line, ast.Import | ast.ImportFrom)]
    imports = [line for line in imports if not isinstance(line, ast.ImportFrom) or line.module != "__future__"]
    taken = _stored(tree)
    found = _Found(*_imported(imports, compiled, root, taken))
    found.visit(tree)
    if not found.uses:
        return source
    lines = [line.encode() for line in source.split("\n")]
    for node, name in sorted(found.uses, key=lambda use: (use[0].lineno, use[0].col_offset), reverse=True):
        if node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + name.encode() + line[node.end_col_offset :]
    made = "".join(f"; {name}: {_FINAL} = {expression}" for expression, name in sorted(found.bound.items()))
    last = imports[-1]
    line = lines[last.end_lineno - 1]
    behind = f"; from typing import Final as {_FINAL}{made}".encode()
    lines[last.end_lineno - 1] = line[: last.end_col_offset] + behind + line[last.end_col_offset :]
    return b"\n".join(lines).decode()


def _stored(tree: ast.Module) -> set[str]:
    """Return the names that functions may bind to something else."""
    stored: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored.add(node.id)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            stored.add(node.name or "")
        elif isinstance(node, ast.Import | ast.ImportFrom) and node not in tree.body:
            stored |= {alias.asname or alias.name for alias in node.names}
    return stored


def _imported(
    imports: list[ast.Import | ast.ImportFrom], compiled: Container[str], root: Path, taken: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the kind of each imported name, "called" or "constant", and the module that a name means."""
    kinds: dict[str, str] = {}
    modules: dict[str, str] = {}
    for line in imports:
        for alias in line.names:
            name, within = alias.asname or alias.name, line.module if isinstance(line, ast.ImportFrom) else ""
            full = f"{within}.{alias.name}" if within else alias.name
            if name in taken or "." in name or full.partition(".")[0] in _KNOWN or (within or "") in _KNOWN:
                continue
            if not within or _file(full, root) is not None:
                modules |= {name: full} if full not in compiled else {}
            elif kind := _kind(within, alias.name, compiled, root):
                kinds[name] = kind
    return kinds, modules


def _file(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for line in ast.parse(file.read_text()).body:
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[line.name] = line
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = line
        elif isinstance(line, ast.Assign):
            found |= {target.id: line for target in line.targets if isinstance(target, ast.Name)}
        elif isinstance(line, ast.ImportFrom):
            found |= {alias.asname or alias.name: line for alias in line.names}
    return found


def _kind(module: str, name: str, compiled: Container[str], root: Path) -> str:
    """Return how a name of a module is bound; empty if mypyc needs no binding, or if the name's value is not plain."""
    file = _file(module, root)
    if file is None:
        return "" if module in _KNOWN or module.startswith(("collections", "typing")) else "called"
    defined = _definitions(file).get(name)
    if isinstance(defined, ast.ImportFrom) and defined.module:
        names = {alias.asname or alias.name: alias.name for alias in defined.names}
        is_module = _file(f"{defined.module}.{name}", root) is not None
        return "" if is_module else _kind(defined.module, names[name], compiled, root)
    if isinstance(defined, ast.AnnAssign) and "Final" in ast.unparse(defined.annotation):
        return "" if module in compiled or isinstance(defined.value, ast.Constant) else "constant"
    if isinstance(defined, ast.Assign | ast.AnnAssign):
        return "constant" if _CONSTANT.fullmatch(name) else ""
    return "called" if defined is not None and module not in compiled else ""


class _Found(ast.NodeVisitor):
    """The uses of imported names in functions."""

    def __init__(self, kinds: dict[str, str], modules: dict[str, str]) -> None:
        self._kinds, self._modules = kinds, modules
        self._depth = 0  # in functions
        self.bound: Bound = {}
        self.uses: list[tuple[ast.expr, str]] = []

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        for line in node.body:  # skips decorators, defaults and annotations
            self.visit(line)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        for line in node.body:
            self.visit(line)

    def visit_Call(self, node: ast.Call) -> None:
        self._note(node.func, is_called=True)
        is_of_types = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass", "cast")
        self.generic_visit(ast.Tuple(node.args[:1] if is_of_types else [*node.args, *node.keywords, node.func]))

    def visit_Name(self, node: ast.Name) -> None:
        self._note(node, is_called=False)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._note(node, is_called=False):
            self.generic_visit(node)

    def _note(self, node: ast.expr, *, is_called: bool) -> bool:
        if not self._depth or not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        if isinstance(node, ast.Name):
            kind = self._kinds.get(node.id, "")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._modules:
            kind = "constant" if _CONSTANT.fullmatch(node.attr) else "called"
        else:
            return False
        if kind == "constant" or (kind == "called" and is_called):
            expression = ast.unparse(node)
            name = self.bound.setdefault(expression, f"_of_{expression.replace('.', '_')}")
            if (node, name) not in self.uses:
                self.uses.append((node, name))
            return True
        return False
