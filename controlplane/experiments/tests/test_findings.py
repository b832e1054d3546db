"""The tables of docs/findings.md: what counts as best or tied, and that each is there."""

import math
from dataclasses import replace

import pytest

from bench import findings
from bench.findings import Played
from router.policy.schema import document as documents


def played(seconds, **changes):
    """A run of four requests that all took this long."""
    whole = Played((seconds,) * 4, (0.01,) * 4, (seconds,) * 4, (True,) * 4, 0.0, 0, 0.0, 0.0)
    return replace(whole, **changes)


def runs(**arms):
    return {arm: [played(value) for value in values] for arm, values in arms.items()}


@pytest.mark.parametrize(
    ("arms", "marked"),
    [
        (runs(a=(1.0, 1.1, 1.0), b=(2.0, 2.2, 2.1)), {"a"}),
        (runs(a=(1.0, 1.1, 1.0), b=(1.001, 1.102, 1.001)), {"a", "b"}),  # less than 1 %
        (runs(a=(1.0, 2.0, 3.0), b=(2.0, 2.1, 2.2)), {"a", "b"}),  # by chance
        (runs(a=(1.0, 1.1, 1.0), b=(0.1, math.inf, 0.1)), {"a"}),  # does not answer
    ],
)
def test_an_arm_is_tied_when_no_other_beats_it(arms, marked):
    assert findings.best_or_tied(arms, "ttft_p90") == marked


def test_requests_that_were_refused_are_late_and_outside_of_the_slo():
    one = played(1.0, ttft=(1.0, 1.0, 1.0, math.inf), within=(True, True, True, False), refused=1)
    assert findings.METRICS["ttft_p90"](one) == math.inf
    assert findings.METRICS["goodput"](one) == 75.0


def test_the_default_policy_is_among_the_strategies():
    (arm,) = [arm for arm in map(findings.named, findings.PEERS) if arm["name"] == findings.DEFAULT["name"]]
    chosen = documents.apply_overrides(documents.default(arm["strategy"]), arm["overrides"])
    assert chosen == documents.default()


def test_every_table_is_in_the_document():
    text = findings.DOC.read_text()
    for name in findings.TABLES:
        table = text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
        assert table.count("\n|") > 8, name
