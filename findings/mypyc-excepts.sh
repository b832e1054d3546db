#!/usr/bin/env bash
# mypyc gives the names of all `except … as error` of a function one type, so that a handler further down raises TypeError.
#
# Expected before the run: either works, as in CPython and as mypy accepts it without a word, or the compiler refuses it.
# Seen: it compiles without a warning, and when the second handler is entered, the caller gets a TypeError in place of
# what the handler does. A router's rare path (a retry after another kind of error) breaks where only the usual one is
# tested. Other names for the errors help. Needs a C compiler and Python's headers.
set -euo pipefail
VERSION=2.4.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet "mypy==$VERSION" "setuptools==80.9.0"
cat > attempts.py <<'PY'
class Refused(Exception):
    pass


class Broken(Exception):
    pass


def attempt_named_apart(given: Exception) -> str:
    try:
        raise given
    except Refused as refused:
        return f"refused: {refused}"
    except Broken as broken:
        return f"broken: {broken}"


def attempt_with_one_name(given: Exception) -> str:
    try:
        raise given
    except Refused as error:
        return f"refused: {error}"
    except Broken as error:
        return f"broken: {error}"
PY
cat > show.py <<'PY'
import attempts

print(attempts.__file__.rpartition(".")[2])
for function in (attempts.attempt_named_apart, attempts.attempt_with_one_name):
    for error in (attempts.Refused("full"), attempts.Broken("gone")):
        try:
            print(function.__name__, "->", function(error))
        except TypeError as wrong:
            print(function.__name__, "-> TypeError:", wrong)
PY
venv/bin/python show.py | tee interpreted
venv/bin/mypy --strict attempts.py
venv/bin/mypyc attempts.py > built 2>&1
venv/bin/python show.py | tee compiled
test "$(head -1 compiled)" = so
diff <(tail -n +2 interpreted | head -3) <(tail -n +2 compiled | head -3)
grep -qx 'attempt_with_one_name -> broken: gone' interpreted
grep -q '^attempt_with_one_name -> TypeError: .*Refused object expected; got .*Broken' compiled
echo "mypyc $VERSION takes the second handler's error for the first one's"
