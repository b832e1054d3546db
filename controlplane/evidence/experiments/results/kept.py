"""The stored results of an experiment: numbers behind a link stay as first shown, except wrong ones."""

from pathlib import Path
from typing import Any

import msgspec

from router.contract import ranks

FIRST_KEPT = 3  # first version kept; older results had other statistics
FIRST_PRICED_BY_INSTANCE = 6  # older results priced each data-parallel rank as a whole instance
COSTS = ("tokens_per_gpu_s", "dollars_per_million")


class KeptResults(msgspec.Struct, frozen=True):
    signature: list[Any]
    results: Any

    @property
    def schema(self) -> int:
        return int(self.signature[0])


def read(path: Path) -> KeptResults | None:
    """Read the file; None if there is no readable one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptResults)
    except (OSError, ValueError):
        return None


def with_kept_numbers(made: Any, kept: KeptResults) -> Any:
    """Return the results as first shown, with additions of newer versions of Weir."""
    if kept.schema < FIRST_KEPT:
        return made
    first = kept.results if kept.schema >= FIRST_PRICED_BY_INSTANCE else _without_costs_of_ranks(kept.results)
    return with_first_numbers(made, first) | {"schema": made["schema"]}


def with_first_numbers(made: Any, kept: Any) -> Any:
    if isinstance(made, dict) and isinstance(kept, dict):
        return {**kept, **{key: with_first_numbers(part, kept.get(key, part)) for key, part in made.items()}}
    if isinstance(made, list) and isinstance(kept, list) and len(made) == len(kept):
        return [with_first_numbers(part, first) for part, first in zip(made, kept, strict=True)]
    return kept


def _without_costs_of_ranks(results: Any) -> Any:
    """Remove the costs of arms whose endpoints are ranks, and the judgements based on them."""
    wrong = {arm["name"] for arm in results["arms"] if _has_ranks(arm)}
    if not wrong:
        return results
    rows = results.get("expectations", [])
    judged = [_is_by_cost(row, wrong) for row in rows]
    kept = {name: part for name, part in results.items() if not (name == "verdict" and any(judged))}
    return kept | {
        "arms": [_without(arm, COSTS) if arm["name"] in wrong else arm for arm in results["arms"]],
        "expectations": [{} if is_wrong else row for row, is_wrong in zip(rows, judged, strict=True)],
    }


def _has_ranks(arm: Any) -> bool:
    return any(ranks.split(name)[1] for run in arm.get("runs", []) for name in run.get("prompt_tokens_by_instance", {}))


def _is_by_cost(row: Any, arms: set[str]) -> bool:
    """True for a row judged by cost in one of these arms; a row without an arm is judged in every arm."""
    named = {row.get("arm"), row.get("relative_to")} - {"", None}
    return row.get("metric") in COSTS and not (row.get("arm") and arms.isdisjoint(named))


def _without(part: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in names}
