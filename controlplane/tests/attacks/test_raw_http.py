"""Malformed HTTP on raw sockets, from a seeded grammar and stored cases: a proper answer or a closed connection."""

import random
import re
from pathlib import Path

import pytest

from controlplane.tests.attacks import grammar

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(400)]

CASES = sorted((Path(__file__).parent / "cases").glob("*.http"))
SEEDS = range(8)
PER_SEED = 250
FINE = re.compile(rb"HTTP/1\.[01] (1\d\d|2\d\d|3\d\d|4\d\d|501|503|505) ")


def wrong(answer):
    """Return whether the answer is anything but silence or a status that blames the client or says that the request
    cannot be served.
    """
    return bool(answer) and not FINE.match(answer)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("server", ["router", "web"])
def test_malformed_requests_get_a_proper_answer_or_none(target, server, seed):
    draw = random.Random(f"{server} {seed}")
    requests = [grammar.request(draw) for _ in range(PER_SEED)]
    found = [(raw[:300], answer[:200]) for raw in requests if wrong(answer := target.send(server, raw))]
    assert found == []
    assert target.troubles() == []
    assert target.tracebacks() == []


@pytest.mark.parametrize("server", ["router", "web"])
@pytest.mark.parametrize("case", CASES, ids=[case.stem for case in CASES])
def test_stored_cases_get_a_proper_answer_or_none(target, server, case):
    assert not wrong(target.send(server, case.read_bytes()))
    assert target.troubles() == []
    assert target.tracebacks() == []
