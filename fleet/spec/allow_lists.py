"""Allow lists for fleet documents, with which administrators limit what an operator can run on a host.
A document is checked where it is applied, and again at each start by the lists of its node. A list that is not set
allows everything.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from django.conf import settings

from fleet.kinds import KINDS
from fleet.kinds.kind import Kind
from fleet.kinds.options.common_options import IMAGE
from fleet.kinds.options.option import build, options_of
from fleet.spec.fleet_spec import FleetSpec, InvalidFleet
from fleet.spec.masking import ARGUMENTS, ENVIRONMENT
from router.contract.net.engine_key import OPTION as ENGINE_KEY
from router.contract.net.engine_tls import OPTION as TLS
from router.contract.net.whereabouts import is_inside
from router.contract.values.fields import Field
from router.contract.values.problem import Problem

PROGRAMS = ("program", "python", IMAGE)
_WORDS = re.compile(r"[\"'=,\s{}\[\]]+")

Patterns = tuple[str, ...] | None  # None: no list, everything is allowed
Resolve = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class AllowLists:
    programs: Patterns = None  # allowed values of the options program, python and image
    folders: Patterns = None  # absolute folders for every path in options and arguments
    variables: Patterns = None  # allowed names in `environment`, and for `engine_key` and `tls`
    arguments: Patterns = None  # allowed flags in `arguments`


def configured() -> AllowLists:
    return AllowLists(
        settings.ALLOWED_PROGRAMS, settings.ALLOWED_FOLDERS, settings.ALLOWED_VARIABLES, settings.ALLOWED_ARGUMENTS
    )


def check_fleet(spec: FleetSpec) -> None:
    """Check a fleet. Raise InvalidFleet with every option that the lists refuse."""
    lists, found = configured(), []
    for index, pool in enumerate(spec.pools):
        found += refusals(lists, KINDS[pool.kind], pool.model, pool.engine, f"spec.pools[{index}]")
    if found:
        raise InvalidFleet(found)


def refusals(
    lists: AllowLists,
    kind: Kind,
    model: str,
    engine: Mapping[str, object],
    path: str,
    resolve: Resolve = os.path.normpath,
) -> list[Problem]:
    """Return the problems. `resolve` maps a path to the one that is compared with the folders; a node follows links."""
    values, found = vars(build(kind.spec, engine)), []
    if not kind.launched:  # the engine runs elsewhere, but Weir reads these files
        for name in ("file", "tokenizer"):
            found += _paths(lists, values.get(name) or "", f"{path}.engine.{name}", resolve)
        for name, given in (values.get(TLS) or {}).items():
            found += _engine_key(lists, given, f"{path}.engine.{TLS}.{name}", resolve)
        return found + _engine_key(lists, values.get(ENGINE_KEY), f"{path}.engine.{ENGINE_KEY}", resolve)
    for option in options_of(kind.spec):
        found += _of_option(lists, option, values[option.name], f"{path}.engine.{option.name}", resolve)
    if "model" in values and not values["model"]:
        found += _paths(lists, model, f"{path}.model", resolve)
    return found


def source_refusals(source: str, path: str) -> list[Problem]:
    """Return the problems of a LoRA adapter's source, from which an engine loads it."""
    return _paths(configured(), source, path, os.path.normpath)


def refused_on_node(source: str) -> str:
    """Return why this node does not let its engine load the adapter; links are followed."""
    return next((problem.text for problem in _paths(configured(), source, "source", os.path.realpath)), "")


def _of_option(lists: AllowLists, option: Field, value: Any, path: str, resolve: Resolve) -> list[Problem]:
    if not value:
        return []
    if option.name in PROGRAMS:
        return _program(lists, value, path)
    if option.name == ENGINE_KEY:
        return _engine_key(lists, value, path, resolve)
    if option.name == ENVIRONMENT:
        return list(_variables(lists, value, path, resolve))
    if option.name == ARGUMENTS:
        return list(_arguments(lists, value, path, resolve))
    texts = value if isinstance(value, tuple) else (value,)
    return [one for text in texts if isinstance(text, str) for one in _paths(lists, text, path, resolve)]


def _program(lists: AllowLists, value: str, path: str) -> list[Problem]:
    """Return the problems of a program. Links are not followed, as the python of a virtual environment is one."""
    is_path = value.startswith(("/", ".", "~")) or "/.." in value  # an image has slashes, too
    named = os.path.normpath(_absolute(value)) if is_path else value
    return [] if _fits(named, lists.programs) else [_refused(path, value, "program", lists.programs)]


def _variables(lists: AllowLists, given: Mapping[str, str], path: str, resolve: Resolve) -> Iterator[Problem]:
    for name, text in given.items():
        if not _fits(name, lists.variables):
            yield _refused(f"{path}.{name}", name, "variable", lists.variables)
        yield from _paths(lists, text, f"{path}.{name}", resolve)


def _engine_key(lists: AllowLists, value: str | None, path: str, resolve: Resolve) -> list[Problem]:
    """Return the problems of the key's variable, or of the folder of its file."""
    kind, _, name = (value or "").partition(":")
    if kind == "env" and not _fits(name, lists.variables):
        return [_refused(path, name, "variable", lists.variables)]
    return _paths(lists, name, path, resolve) if kind == "file" else []


def _arguments(lists: AllowLists, words: tuple[str, ...], path: str, resolve: Resolve) -> Iterator[Problem]:
    """Yield the problems of arguments. A word without a dash must be the value of the preceding flag."""
    free = False  # True if the previous word was a flag without a value
    for index, word in enumerate(words):
        where, is_flag = f"{path}[{index}]", word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)
        flag, equals, _ = word.partition("=")
        if (is_flag or not free) and not _fits(flag if is_flag else word, lists.arguments):
            yield _refused(where, word, "argument", lists.arguments)
        free = is_flag and not equals
        yield from _paths(lists, word, where, resolve)


def _paths(lists: AllowLists, text: str, path: str, resolve: Resolve) -> list[Problem]:
    """Return the problems of every path in the text; a hub name such as meta-llama/Llama-3.1-8B is not a path."""
    if lists.folders is None:
        return []
    allowed = [resolve(folder) for folder in lists.folders]
    return [
        _refused(path, word, "folder", lists.folders)
        for word in _WORDS.split(text)
        if _is_path(word) and not any(is_inside(resolve(_absolute(word)), folder) for folder in allowed)
    ]


def _is_path(word: str) -> bool:
    if "://" in word and not word.startswith("file:"):
        return False
    return word.startswith(("/", ".", "~", "file:")) or "/.." in word or ":/" in word or word.count("/") > 1


def _absolute(word: str) -> str:
    return os.path.join(settings.BASE_DIR, os.path.expanduser(word.removeprefix("file://").removeprefix("file:")))


def _fits(name: str, patterns: Patterns) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def _refused(path: str, value: str, what: str, patterns: Patterns) -> Problem:
    setting = f"WEIR_ALLOWED_{what.upper()}S"
    return Problem(path, value, f"the administrators do not allow this {what} ({setting})", ", ".join(patterns or ()))
