"""Run a machine's schedules: a number of them, drawn from a numeric seed so that each run tries the same ones."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

Machine = Callable[[], RuleBasedStateMachine]
TIMES = int(os.environ.get("WEIR_TEST_SCHEDULES_TIMES", "1"))  # as many in the slow tests: 10 for 10,000 of them
LONGEST = 300 * TIMES  # s, of a test that tries many


def try_schedules(
    machine: Machine, schedules: int, number: int = 0, steps: int = 16, phases: Iterable[Phase] = tuple(Phase)
) -> None:
    """Raise the error of the first schedule that violates a guarantee, with its shortest form as a program."""
    with _drawn_from_the_seed_alone():
        run_state_machine_as_test(
            seed(number)(lambda: machine()),
            settings=settings(
                max_examples=schedules,
                stateful_step_count=steps,
                phases=phases,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )


@contextmanager
def _drawn_from_the_seed_alone() -> Iterator[None]:
    """Keep Hypothesis from drawing values out of the constants in the source of loaded modules: otherwise each
    selection of tests would have other schedules, after seconds of parsing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None)
        yield


def schedules_until_broken(machine: Machine, most: int, steps: int = 16, number: int = 0) -> int:
    """Return the number of schedules until a guarantee was violated; fail if `most` were not enough."""
    tried = 0

    def counted() -> RuleBasedStateMachine:
        nonlocal tried
        tried += 1
        return machine()

    try:
        try_schedules(counted, most, number, steps, (Phase.generate,))
    except AssertionError:
        return tried
    raise LookupError(f"{tried} schedules broke no promise")
