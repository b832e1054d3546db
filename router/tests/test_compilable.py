"""Rules that keep the request path compilable: no construct that mypyc rejects or silently changes."""

import ast
import builtins
import importlib
import re
from functools import cache
from pathlib import Path

from router.request_path import ROUTER

ROUTERS = Path(__file__).parents[1]
RECORDS = {"Struct", "Value", "msgspec.Struct"}  # their metaclass accepts what mypyc does not pass on
IN_DICTS = {"cached_property", "__dict__", "__get__", "__getattr__"}  # compiled classes have no `__dict__`
APART = {"tests", "picker", "index"}  # separate processes that run the sources


def source(name: str) -> Path:
    # The router package has no path yet when this module is imported.
    return ROUTERS.parent.joinpath(*name.split(".")).with_suffix(".py")


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(source(name).read_text()) for name in ROUTER.names}


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    nodes = ((name, node) for name, tree in trees().items() for node in ast.walk(tree))
    return [(name, node) for name, node in nodes if isinstance(node, ast.ClassDef)]


def is_exception(name: str, node: ast.ClassDef) -> bool:
    made = getattr(importlib.import_module(name), node.name, None)
    return isinstance(made, type) and issubclass(made, BaseException)


def test_no_compiled_module_makes_records_or_keeps_values_in_a_dictionary():
    made = [f"{name}.{node.name}" for name, node in classes() if RECORDS & {ast.unparse(base) for base in node.bases}]
    words = {
        f"{name}: {word}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        for word in (getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "name", None))
        if word in IN_DICTS
    }
    assert (made, words) == ([], set())


def test_exceptions_have_only_class_variables():
    """When compiled, exceptions lose other class attributes: `refusal.code` raised AttributeError."""
    wrong = [
        f"{name}.{node.name}: {ast.unparse(line)}"
        for name, node in classes()
        if is_exception(name, node)
        for line in node.body
        if isinstance(line, ast.Assign) or (isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line))
    ]
    assert wrong == []


def test_names_of_exceptions_have_one_type_in_a_function():
    """When compiled, a name keeps the type of its first `except`: the second raised TypeError."""
    wrong = []
    for name, tree in trees().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name]
                types = {(node.name, ast.unparse(node.type)) for node in found if node.type is not None}
                wrong += [f"{name}.{function.name}"] * (len(types) != len({node.name for node in found}))
    assert wrong == []


def test_a_function_does_not_read_a_field_after_clearing_it():
    """When compiled, the field still reads as None even if a call in between has set it: the read raised TypeError."""
    wrong = []
    for name, tree in trees().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes = list(ast.walk(function))
                emptied = {
                    ast.unparse(target): node.lineno
                    for node in nodes
                    if isinstance(node, ast.Assign) and ast.unparse(node.value) == "None"
                    for target in node.targets
                    if isinstance(target, ast.Attribute)
                }
                read = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
                late = [ast.unparse(node) for node in read if node.lineno > emptied.get(ast.unparse(node), node.lineno)]
                wrong += [f"{name}.{function.name}: {field}" for field in late]
    assert wrong == []


def test_no_weak_reference_refers_to_a_compiled_class():
    """When compiled, subclasses of a library's class were freed before their weak references: the process crashed."""
    wrong = [path for path in ROUTERS.rglob("*.py") if "tests" not in path.parts and "weakref" in path.read_text()]
    assert wrong == []


def names(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def test_only_deletable_names_are_deleted():
    for name, node in classes():
        declared = [line.value for line in node.body if isinstance(line, ast.Assign) and "__deletable__" in names(line)]
        allowed = set(ast.literal_eval(declared[0])) if declared else set()
        deleted = {
            target.attr
            for line in ast.walk(node)
            if isinstance(line, ast.Delete)
            for target in line.targets
            if isinstance(target, ast.Attribute)
        }
        assert deleted <= allowed, f"{name}.{node.name}"


def test_subclasses_of_compiled_classes_are_compiled():
    """An interpreted class cannot inherit from a compiled one."""
    compiled = {node.name for name, node in classes() if not is_exception(name, node)} - {*dir(builtins)}
    sources = {source(name) for name in ROUTER.names}
    wrong = [
        f"{path.relative_to(ROUTERS)}: {name}"
        for path in ROUTERS.rglob("*.py")
        if path not in sources and not APART & {*path.relative_to(ROUTERS).parts}
        for name, bases in re.findall(r"(?m)^class (\w+)\((.*)\):", path.read_text())
        if compiled & set(re.findall(r"\w+", bases))
    ]
    assert wrong == []
