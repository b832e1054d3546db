"""Checks of a pool's sections. Pure."""

import re
import zoneinfo
from collections.abc import Callable, Mapping
from typing import get_args

from fleet.kinds.options.option import check
from fleet.spec.problems import Check, Problems
from fleet.spec.sections import (
    CLASSES,
    DAYS,
    MAX_REPLICAS,
    Autoscale,
    BillingLine,
    Placement,
    Update,
    autoscale_of,
    update_of,
)

MAX_WINDOWS = 50
LONGEST_KEY_NAME = 80  # characters
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_NODE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_update(path: str, value: object, problems: Problems) -> None:
    given = problems.mapping(path, value)
    found = check(Update, given, path)
    problems += found
    if found:
        return
    update = update_of(given)
    if update.strategy == "in_place" and update.max_surge is not None:
        problems.note(f"{path}.max_surge", update.max_surge, "is for the strategy surge only")
    if update.strategy == "in_place" and update.max_unavailable == 0:
        problems.note(f"{path}.max_unavailable", 0, "must be 1 or more with the strategy in_place")


def check_placement(path: str, value: object, problems: Problems) -> None:
    known = ("nodes", "labels", "spread", "cpus", "memory_gib", "gpus")
    given = problems.keys(path, problems.mapping(path, value), known)
    nodes, labels = given.pop("nodes", []), given.pop("labels", {})
    problems += check(Placement, given, path)
    problems.distinct(f"{path}.nodes", nodes, _matches(_NODE), "node names")
    is_label = _matches(_LABEL)
    if not isinstance(labels, Mapping) or not all(is_label(text) for pair in labels.items() for text in pair):
        problems.note(f"{path}.labels", labels, "must be a mapping of label names to label values, both text")


def check_autoscale(path: str, value: object, problems: Problems) -> None:
    given = dict(problems.mapping(path, value))
    slo = given.pop("slo_ttft_p90_ms", {})
    before = len(problems)
    problems += check(Autoscale, given, path)
    _check_slo(f"{path}.slo_ttft_p90_ms", slo, problems)
    if len(problems) > before:
        return
    autoscale = autoscale_of(given)
    if autoscale.min > autoscale.max:
        problems.note(f"{path}.min", autoscale.min, f"must not be more than max ({autoscale.max})")
    _check_sides(path, autoscale, problems)
    if autoscale.min and autoscale.target_queue is None and autoscale.target_kv is None and not slo:
        problems.note(path, value, "needs a target: target_queue, target_kv or slo_ttft_p90_ms")


def _check_sides(path: str, autoscale: Autoscale, problems: Problems) -> None:
    """Check prefill and decode instances that are scaled separately, each by their own load."""
    fewest, most = (
        (autoscale.prefill_min or 1, autoscale.decode_min or 1),
        (autoscale.prefill_max, autoscale.decode_max),
    )
    for side, low, high in zip(("prefill", "decode"), fewest, most, strict=True):
        if autoscale.prefill_max is None:
            for name in (f"{side}_min", f"{side}_max"):
                if getattr(autoscale, name) is not None:
                    problems.note(f"{path}.{name}", getattr(autoscale, name), "needs prefill_max")
        elif high is not None and low > high:
            problems.note(f"{path}.{side}_min", low, f"must not be more than {side}_max ({high})")
    if autoscale.prefill_max is not None and sum(fewest) > autoscale.max:
        problems.note(f"{path}.max", autoscale.max, f"must not be less than both sides have at least ({sum(fewest)})")
    if autoscale.prefill_max is not None and not autoscale.min:
        problems.note(f"{path}.min", 0, "must be 1 or more with prefill_max")


def _check_slo(path: str, value: object, problems: Problems) -> None:
    if not isinstance(value, Mapping):
        problems.note(path, value, f"must be a mapping of classes ({', '.join(CLASSES)}) to milliseconds")
        return
    for name, limit in value.items():
        if name not in CLASSES:
            problems.note(f"{path}.{name}", limit, "unknown class", ", ".join(CLASSES))
        elif isinstance(limit, bool) or not isinstance(limit, int | float) or not 1 <= limit <= 3.6e6:
            problems.note(f"{path}.{name}", limit, "must be a number of milliseconds", "1 to 3600000")


def check_schedule(path: str, value: object, problems: Problems) -> None:
    given = problems.keys(path, problems.mapping(path, value), ("timezone", "windows"))
    zone = given.get("timezone", "UTC")
    if not isinstance(zone, str) or not _is_zone(zone):
        problems.note(f"{path}.timezone", zone, "must be a time zone, for example UTC or Europe/Berlin")
    windows = given.get("windows", [])
    if not isinstance(windows, list) or len(windows) > MAX_WINDOWS:
        problems.note(f"{path}.windows", windows, f"must be a list of 0 to {MAX_WINDOWS} windows")
        return
    for index, window in enumerate(windows):
        _check_window(f"{path}.windows[{index}]", window, problems)


def _check_window(path: str, value: object, problems: Problems) -> None:
    given = problems.keys(path, problems.mapping(path, value), ("days", "from", "to", "replicas"))
    problems.distinct(f"{path}.days", given.get("days", list(DAYS)), DAYS.__contains__, f"days: {', '.join(DAYS)}")
    for name in ("from", "to"):
        time = given.get(name)
        if not isinstance(time, str) or not _TIME.fullmatch(time) or (name == "from" and time == "24:00"):
            problems.note(f"{path}.{name}", time, 'must be a time of day in quotes, "00:00" to "24:00"')
    problems.whole_number(f"{path}.replicas", given.get("replicas"), MAX_REPLICAS)


def _matches(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def _is_zone(name: str) -> bool:
    if name == "UTC":
        return True  # valid even where no time zones are installed
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def check_slo(path: str, value: object, problems: Problems) -> None:
    given = problems.keys(path, problems.mapping(path, value), ("ttft_p90_ms",))
    _check_slo(f"{path}.ttft_p90_ms", given.get("ttft_p90_ms", {}), problems)


def check_access(path: str, value: object, problems: Problems) -> None:
    known = ("trusted_keys", "salt_by_key", "billing_line")
    given = problems.keys(path, problems.mapping(path, value), known)
    if not isinstance(given.get("salt_by_key", False), bool):
        problems.note(f"{path}.salt_by_key", given["salt_by_key"], "must be true or false")
    if given.get("billing_line", "auto") not in get_args(BillingLine):
        problems.note(f"{path}.billing_line", given["billing_line"], "unknown choice", ", ".join(get_args(BillingLine)))
    problems.distinct(f"{path}.trusted_keys", given.get("trusted_keys", []), _is_key_name, "names of API keys")


def _is_key_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_KEY_NAME and value == value.strip()


CHECKS: dict[str, Check] = {
    "update": check_update,
    "placement": check_placement,
    "schedule": check_schedule,
    "autoscale": check_autoscale,
    "slo": check_slo,
    "access": check_access,
}
