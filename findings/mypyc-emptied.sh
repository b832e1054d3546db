#!/usr/bin/env bash
# mypyc reads an attribute that the function has set to None as None for good, though a method called in between set it
# anew, and raises TypeError.
#
# Expected before the run: the attribute is read again, as CPython does, since a call may have changed it.
# Seen: mypy narrows the attribute at the assignment and forgets nothing at the call, without a word under --strict; the
# compiled read checks for that None and raises "None object expected". A timer that re-arms itself in its callback
# breaks when the callback has armed it. Reading the attribute in another method helps. Needs a C compiler and Python's
# headers.
set -euo pipefail
VERSION=2.4.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet "mypy==$VERSION" "setuptools==80.9.0"
cat > timer.py <<'PY'
from collections.abc import Callable


class Timer:
    def __init__(self, callback: Callable[["Timer"], None]) -> None:
        self.callback = callback
        self.armed: str | None = None

    def arm(self, by: str) -> None:
        self.armed = by

    def fire_and_read_here(self) -> str:
        self.armed = None
        self.callback(self)
        if self.armed is None:
            self.arm("itself")
        return "fired"

    def fire_and_read_apart(self) -> str:
        self.armed = None
        self.callback(self)
        self.arm_if_needed()
        return "fired"

    def arm_if_needed(self) -> None:
        if self.armed is None:
            self.arm("itself")
PY
cat > show.py <<'PY'
import timer

print(timer.__file__.rpartition(".")[2])
for name in ("fire_and_read_apart", "fire_and_read_here"):
    for callback in (lambda made: None, lambda made: made.arm("callback")):
        made = timer.Timer(callback)
        try:
            print(name, "->", getattr(made, name)(), "armed by", made.armed)
        except TypeError as wrong:
            print(name, "-> TypeError:", wrong)
PY
venv/bin/python show.py | tee interpreted
venv/bin/mypy --strict timer.py
venv/bin/mypyc timer.py > built 2>&1
venv/bin/python show.py | tee compiled
test "$(head -1 compiled)" = so
diff <(tail -n +2 interpreted | head -3) <(tail -n +2 compiled | head -3)
grep -qx 'fire_and_read_here -> fired armed by callback' interpreted
grep -q '^fire_and_read_here -> TypeError: None object expected; got str' compiled
echo "mypyc $VERSION takes an attribute for None after a call that has set it"
