"""Runs a machine's schedules: so many, drawn from a seed that is a number, so that each run tries the same ones."""

from collections.abc import Callable, Iterable

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

Machine = Callable[[], RuleBasedStateMachine]


def try_schedules(
    machine: Machine, schedules: int, number: int = 0, steps: int = 16, phases: Iterable[Phase] = tuple(Phase)
) -> None:
    """Raises what the first one that breaks a promise raises, with its shortest form as a program."""
    run_state_machine_as_test(
        seed(number)(lambda: machine()),
        settings=settings(
            max_examples=schedules,
            stateful_step_count=steps,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def schedules_until_broken(machine: Machine, most: int, steps: int = 16) -> int:
    """How many schedules it took until a promise was broken; fails when `most` did not suffice."""
    tried = 0

    def counted() -> RuleBasedStateMachine:
        nonlocal tried
        tried += 1
        return machine()

    try:
        try_schedules(counted, most, 0, steps, (Phase.generate,))
    except AssertionError:
        return tried
    raise LookupError(f"{tried} schedules broke no promise")
