"""Draws points to try: with Optuna, an optional package (requirements-tune.txt), otherwise spread evenly."""

import importlib
import importlib.util
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.evidence.tuning.goals import OBJECTIVES, Goals
from controlplane.evidence.tuning.space import Dimension
from router.contract.values.json_value import JsonObject

EVENLY = "a search that learns from its trials: Optuna is not installed, so they were spread evenly over the bounds"
DIRECTIONS = {"ttft": "minimize", "tpot": "minimize", "goodput": "maximize"}
ENDLESS = 1e9  # stands for infinity, which Optuna's models do not accept
WORST = {"ttft": ENDLESS, "tpot": ENDLESS, "goodput": 0.0}  # goals of a point that is not a valid document
AT_RANDOM = 0.25  # share of trials drawn at random before the search learns


def is_installed() -> bool:
    return importlib.util.find_spec("optuna") is not None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A point to try."""

    trial: Any  # Optuna's trial
    values: JsonObject  # values by path


class EvenSearch:
    """Spreads its points evenly over the space by the additive recurrence of the root of x^(n + 1) = x + 1 in n
    dimensions, regardless of earlier results; the seed shifts all points.
    """

    def __init__(self, space: Sequence[Dimension], seed: int) -> None:
        root = 1.0
        for _ in range(50):
            root = (1 + root) ** (1 / (len(space) + 1))
        draw = random.Random(seed)  # noqa: S311 - points, not secrets
        self._space, self._at = space, [draw.random() for _ in space]
        self._steps = [root**-number for number in range(1, len(space) + 1)]

    def begin(self, values: JsonObject, goals: Goals) -> None:
        pass

    def ask(self) -> Drawn:
        self._at = [(at + step) % 1 for at, step in zip(self._at, self._steps, strict=True)]
        positions = zip(self._space, self._at, strict=True)
        return Drawn(None, {each.path: _value(each, position) for each, position in positions})

    def tell(self, drawn: Drawn, goals: Goals | None) -> None:
        pass


def _value(dimension: Dimension, position: float) -> Any:
    if dimension.choices:
        return dimension.choices[int(position * len(dimension.choices))]
    return dimension.value_at(position)


class OptunaSearch:
    """A deterministic search: with the same seed and the same results in the same order, it draws the same points."""

    def __init__(
        self, space: Sequence[Dimension], seed: int, trials: int, objectives: Sequence[str] = OBJECTIVES
    ) -> None:
        self._optuna = optuna = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._objectives = space, objectives
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(5, round(AT_RANDOM * trials)))
        self._study = optuna.create_study(directions=[DIRECTIONS[name] for name in objectives], sampler=sampler)

    def begin(self, values: JsonObject, goals: Goals) -> None:
        """Learn from the live version, unless one of its values is outside the bounds."""
        params = {each.path: self._parameter(each, values[each.path]) for each in self._space}
        if None in params.values():
            return
        distributions = self._optuna.distributions
        distribution_of = {
            each.path: distributions.CategoricalDistribution(each.choices)
            if each.choices
            else distributions.FloatDistribution(0.0, 1.0)
            for each in self._space
        }
        create = self._optuna.trial.create_trial
        self._study.add_trial(create(params=params, distributions=distribution_of, values=self._values(goals)))

    def _parameter(self, dimension: Dimension, value: Any) -> Any:
        return value if dimension.choices else dimension.position_of(value)

    def ask(self) -> Drawn:
        trial = self._study.ask()
        return Drawn(trial, {each.path: self._value(trial, each) for each in self._space})

    def _value(self, trial: Any, dimension: Dimension) -> Any:
        if dimension.choices:
            return trial.suggest_categorical(dimension.path, dimension.choices)
        return dimension.value_at(trial.suggest_float(dimension.path, 0.0, 1.0))

    def tell(self, drawn: Drawn, goals: Goals | None) -> None:
        """Report a point's goals; None if it is not a valid document."""
        worst = [WORST[name] for name in self._objectives]
        self._study.tell(drawn.trial, worst if goals is None else self._values(goals))

    def _values(self, goals: Goals) -> list[float]:
        by_name = dict(zip(OBJECTIVES, goals.ordered, strict=True))
        return [min(by_name[name], ENDLESS) for name in self._objectives]


Search = EvenSearch | OptunaSearch


def search_of(space: Sequence[Dimension], seed: int, trials: int, objectives: Sequence[str]) -> Search:
    return OptunaSearch(space, seed, trials, objectives) if is_installed() else EvenSearch(space, seed)
