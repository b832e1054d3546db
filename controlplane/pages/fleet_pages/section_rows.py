"""A pool's rollout, placement, schedule, autoscaler, access and SLO as readable rows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.common.figures import ms, percent, setting
from fleet.kinds.options.option import options_of
from fleet.models import Pool
from fleet.spec.fleet_spec import PoolSpec
from fleet.spec.sections import Autoscale, Placement, Update, access_of, schedule_of, update_of
from router.contract.values.fields import Field

Row = tuple[str, str]  # (title, value with its unit)


@dataclass(frozen=True, slots=True)
class PoolSection:
    title: str
    rows: tuple[Row, ...]


def section_rows(pool: Pool | PoolSpec) -> list[PoolSection]:
    """Return the sections that the document has, in its order; the SLO is last."""
    made = (
        ("Update", pool.update and _update(pool.update, pool.replicas)),
        ("Placement", _given(Placement, pool.placement)),
        ("Schedule", pool.schedule and _schedule(pool.schedule, pool.replicas)),
        ("Autoscaler", pool.autoscale and _given(Autoscale, {**AUTOSCALE_SHOWN, **pool.autoscale})),
        ("Access", _access(pool.access)),
        ("SLO", _given(Autoscale, {"slo_ttft_p90_ms": pool.slo.get("ttft_p90_ms")})),
    )
    return [PoolSection(title, tuple(rows)) for title, rows in made if rows]


AUTOSCALE_SHOWN = {one.name: one.default for one in options_of(Autoscale) if one.name in ("mode", "min", "max")}


def _update(given: Mapping[str, Any], replicas: int) -> list[Row]:
    """Return the rollout with defaults for missing values: a quarter of the pool."""
    update = update_of(given)
    surge = {"max_surge": update.surge(replicas)} if update.strategy == "surge" else {}
    shown = {"strategy": update.strategy, **surge, "max_unavailable": update.unavailable(replicas)}
    return _given(Update, {**shown, "on_failure": update.on_failure})


def _access(given: Mapping[str, Any]) -> list[Row]:
    access = access_of(given)
    rows = (
        ("Keys that may steer its engines", ", ".join(sorted(access.trusted_keys))),
        ("Cache in the engines", "apart by API key" if access.salt_by_key else ""),
        ("Claude Code's billing line", {"keep": "kept", "remove": "removed"}.get(access.billing_line, "")),
    )
    return [row for row in rows if row[1]]


def _schedule(given: Mapping[str, Any], replicas: int) -> list[Row]:
    schedule = schedule_of(given)
    windows = [(window.text, setting(window.replicas, "instances")) for window in schedule.windows]
    return [*windows, ("Otherwise", setting(replicas, "instances")), ("Time zone", schedule.timezone)]


def _given(spec: type, given: Mapping[str, Any]) -> list[Row]:
    return [
        (one.title, _value(one, given[one.name]))
        for one in options_of(spec)
        if given.get(one.name) not in (None, {}, [], ())
    ]


def _value(option: Field, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {ms(each) if option.unit == 'ms' else f'= {each}'}" for name, each in value.items())
    if option.unit == "share":
        return percent(value)
    if option.choices and isinstance(value, list):
        return " + ".join(value)
    if option.choices:
        return str(value).replace("_", " ")
    return setting(value, option.unit)
