"""Names that compiled code has looked up before: every later change is seen."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
BUILDERS = shutil.which("cc") and HEADERS.is_file() and importlib.util.find_spec("setuptools")
BUILD = """
from mypyc.build import mypycify
from setuptools import setup
from deploy.compile import add_caches

extensions = mypycify(["places.py"], opt_level="1", debug_level="0", multi_file=True)
for extension in extensions:
    add_caches(extension)
setup(name="places", packages=[], ext_modules=extensions, script_args=["--quiet", "build_ext", "--inplace"])
"""
PLACES = """
from typing import Any

class Native:
    def __init__(self, x: Any) -> None:
        self.x = x

def read(thing: Any) -> Any:
    return thing.x

def named(thing: Any, name: str) -> Any:
    return getattr(thing, name)

def work(thing: Any, given: Any) -> Any:
    return thing.work(given)

def append(thing: Any, given: Any) -> Any:
    return thing.append(given)

def item(things: dict[str, Any]) -> Any:
    return things["k"]

def key(things: dict[str, Any], name: str) -> Any:
    return things[name]

def call(function: Any, given: Any) -> Any:
    return function(given)

def formatted(value: Any, form: str) -> str:
    return f"{value:,.1f} {value:{form}} {value!r:>4}"

def form(pattern: str, value: Any) -> str:
    return pattern.format(value, ">3")
"""
ASKED = """
import types
import msgspec
import places

assert places.__file__.endswith(".so")

class Record(msgspec.Struct):
    x: int = 1
    y: int = 2

class Other(msgspec.Struct):
    y: int = 3
    x: int = 4

class Slots:
    __slots__ = ("x",)
    def work(self, given): return "slots", given

class Child(Slots):
    x = "class"

class Borrowed:
    __slots__ = ()
    x = Slots.x
    append = list.append

class Plain:
    def work(self, given): return "plain", given

class Asked:
    def __getattr__(self, name): return name
    def __call__(self, given): return "called", given

class Kept(list):
    pass

def refused(error, function, *given):
    try:
        function(*given)
    except error:
        return True

module = types.ModuleType("module")
for turn in range(3):
    slots, plain, kept = Slots(), Plain(), Kept()
    assert (places.read(Record()), places.read(Record(7)), places.read(Other())) == (1, 7, 4)
    assert refused(TypeError, places.read, Borrowed()) and refused(TypeError, places.append, Borrowed(), 1)
    assert refused(AttributeError, places.read, slots) and refused(AttributeError, places.read, object())
    slots.x = plain.x = module.x = turn
    assert [places.read(thing) for thing in (slots, plain, module, Asked())] == [turn, turn, turn, "x"]
    assert places.read(places.Native(turn)) == turn and places.read(Child()) == "class"
    assert [places.named(Record(), name) for name in ("x", "y", "x")] == [1, 2, 1]
    assert [places.named(module, name) for name in ("x", "__name__")] == [turn, "module"]
    assert [places.work(thing, turn) for thing in (slots, plain)] == [("slots", turn), ("plain", turn)]
    plain.work = lambda given: ("own", given)
    assert [places.work(thing, turn)[0] for thing in (plain, Plain(), plain)] == ["own", "plain", "own"]
    places.append(kept, 1)
    kept.append = lambda given: "own"
    assert places.append(kept, 2) == "own" and kept == [1]
    assert refused(TypeError, kept.__class__.append) and refused(AttributeError, places.append, slots, 1)
    assert places.call(len, [1]) == 1 and places.call(Plain().work, 2) == ("plain", 2)
    assert places.call(Asked(), 3) == ("called", 3) and refused(TypeError, places.call, 5, 1)
    assert places.formatted(1234.56, ".0f") == "1,234.6 1235 1234.56" and places.formatted(1, "") == "1.0 1    1"
    assert [places.form(pattern, 5) for pattern in ("{:{}}", "{} {}", "{:{}}")] == ["  5", "5 >3", "  5"]
    assert refused(ValueError, places.formatted, 1, "?") and refused(IndexError, places.form, "{} {} {}", 1)
    things = {"k": 1}
    assert [places.item(things), places.item({"k": 2}), places.item(things)] == [1, 2, 1]
    things["k"] = 3
    assert places.item(things) == 3 and places.key(things | {"l": 4}, "l") == 4
    del things["k"]
    assert refused(KeyError, places.item, things) and refused(KeyError, places.key, things, "l")

del module.x
assert refused(AttributeError, places.read, module)
Slots.x = property(lambda self: "property")
Slots.work = lambda self, given: ("changed", given)
assert places.read(slots) == "property" and places.work(slots, 1) == ("changed", 1)
Slots.__getattribute__ = lambda self, name: "each"
assert places.read(slots) == "each"
"""


@pytest.mark.slow
@pytest.mark.skipif(not BUILDERS, reason="needs a C compiler, Python's headers and setuptools")
def test_a_place_sees_other_types_and_changed_ones(tmp_path):
    (tmp_path / "places.py").write_text(PLACES)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    for program in (BUILD, ASKED):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
