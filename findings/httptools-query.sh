#!/usr/bin/env bash
# httptools' type hints promise bytes where a URL without a query or fragment gives None.
#
# Expected before the run: `query: bytes | None`, or an empty query as b"". Seen: the packaged url_parser.pyi says bytes,
# parse_url gives None, mypy --strict finds nothing to do, and the same function compiled by mypyc, which believes the
# hints, raises TypeError for every path without a question mark. Needs a C compiler and Python's headers.
set -euo pipefail
HTTPTOOLS=0.9.0
MYPY=2.4.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet "httptools==$HTTPTOOLS" "mypy==$MYPY" "setuptools==80.9.0"
cat > target.py <<'PY'
from httptools import parse_url


def query_of(target: bytes) -> bytes:
    return parse_url(target).query or b""
PY
cat > show.py <<'PY'
import target

print(target.__file__.rpartition(".")[2])
for given in (b"/v1/models?limit=3", b"/v1/models"):
    try:
        print(given, "->", target.query_of(given))
    except TypeError as error:
        print(given, "-> TypeError:", error)
PY
grep -n 'query' venv/lib/python3*/site-packages/httptools/parser/url_parser.pyi | tee hints
venv/bin/python show.py | tee interpreted
venv/bin/mypy --strict target.py
venv/bin/mypyc target.py > built 2>&1
venv/bin/python show.py | tee compiled
grep -q 'query: bytes$' hints
grep -qxF "b'/v1/models' -> b''" interpreted
test "$(head -1 compiled)" = so
grep -q "^b'/v1/models' -> TypeError: bytes object expected; got None" compiled
echo "httptools $HTTPTOOLS says bytes and means bytes or None"
