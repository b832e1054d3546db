"""The search for better points by Optuna, an optional package (requirements-tune.txt)."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.tuning.goals import OBJECTIVES, Goals
from controlplane.tuning.space import Dimension
from router.contract.json_value import JsonObject

MISSING = "Optuna is not installed: pip install --require-hashes -r requirements-tune.txt"
DIRECTIONS = {"ttft": "minimize", "tpot": "minimize", "goodput": "maximize"}
ENDLESS = 1e9  # instead of infinity, which Optuna's models do not take
WORST = {"ttft": ENDLESS, "tpot": ENDLESS, "goodput": 0.0}  # of a point that is no valid document
AT_RANDOM = 0.25  # the share of trials before the search learns from the earlier ones


class NotInstalled(Exception):
    def __init__(self) -> None:
        super().__init__(MISSING)


def is_installed() -> bool:
    return importlib.util.find_spec("optuna") is not None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A point to try."""

    trial: Any  # Optuna's
    values: JsonObject  # by path


class Search:
    """Equal seeds and equal answers in an equal order draw equal points. Raises NotInstalled."""

    def __init__(
        self, space: Sequence[Dimension], seed: int, trials: int, objectives: Sequence[str] = OBJECTIVES
    ) -> None:
        if not is_installed():
            raise NotInstalled
        self._optuna = optuna = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._objectives = space, objectives
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(5, round(AT_RANDOM * trials)))
        self._study = optuna.create_study(directions=[DIRECTIONS[name] for name in objectives], sampler=sampler)

    def begin(self, values: JsonObject, goals: Goals) -> None:
        """Learn from the live version, unless one of its values is outside the bounds."""
        own = {each.path: self._parameter(each, values[each.path]) for each in self._space}
        if None in own.values():
            return
        distributions = self._optuna.distributions
        of = {
            each.path: distributions.CategoricalDistribution(each.choices)
            if each.choices
            else distributions.FloatDistribution(0.0, 1.0)
            for each in self._space
        }
        self._study.add_trial(self._optuna.trial.create_trial(params=own, distributions=of, values=self._values(goals)))

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
        """Report a point's values; None if it is no valid document."""
        worst = [WORST[name] for name in self._objectives]
        self._study.tell(drawn.trial, worst if goals is None else self._values(goals))

    def _values(self, goals: Goals) -> list[float]:
        found = dict(zip(OBJECTIVES, goals.ordered, strict=True))
        return [min(found[name], ENDLESS) for name in self._objectives]
