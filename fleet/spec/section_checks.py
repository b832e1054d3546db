"""What is wrong with the sections of a pool. Pure; each check takes the path, the value and the list for problems."""

import re
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any

from fleet.kinds.option import check, suggestion
from fleet.spec.sections import (
    CLASSES,
    DAYS,
    MAX_REPLICAS,
    Autoscale,
    PlacementOptions,
    Update,
    autoscale_of,
    update_of,
)
from router.contract.problem import Problem

MAX_WINDOWS = 50
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_NODE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_update(path: str, value: object, problems: list[Problem]) -> None:
    given = _mapping(path, value, problems)
    found = check(Update, given, path)
    problems.extend(found)
    if found:
        return
    read = update_of(given)
    if read.strategy == "in_place" and read.max_surge is not None:
        problems.append(Problem(f"{path}.max_surge", read.max_surge, "goes with the strategy surge only"))
    if read.strategy == "in_place" and read.max_unavailable == 0:
        problems.append(Problem(f"{path}.max_unavailable", 0, "must be 1 or more with the strategy in_place"))


def check_placement(path: str, value: object, problems: list[Problem]) -> None:
    given = dict(_mapping(path, value, problems))
    nodes, labels = given.pop("nodes", []), given.pop("labels", {})
    known = ("nodes", "labels", "spread", "cpus", "memory_gib", "gpus")
    for name in [name for name in given if name not in known]:
        problems.append(Problem(f"{path}.{name}", given.pop(name), f"unknown key{suggestion(name, known)}"))
    problems.extend(check(PlacementOptions, given, path))
    _check_list(f"{path}.nodes", nodes, _is_node, "names of nodes", problems)
    if not isinstance(labels, Mapping) or not all(_is_label(k) and _is_label(v) for k, v in labels.items()):
        problems.append(Problem(f"{path}.labels", labels, "must be a mapping of labels to their values, both text"))


def check_autoscale(path: str, value: object, problems: list[Problem]) -> None:
    given = dict(_mapping(path, value, problems))
    slo = given.pop("slo_ttft_p90_ms", {})
    found = check(Autoscale, given, path) + _slo_problems(f"{path}.slo_ttft_p90_ms", slo)
    problems.extend(found)
    if found:
        return
    read = autoscale_of(dict(_mapping(path, value, problems)))
    if read.min > read.max:
        problems.append(Problem(f"{path}.min", read.min, f"must not be more than max ({read.max})"))
    if read.target_queue is None and read.target_kv is None and not read.slo_ttft_p90_ms:
        problems.append(Problem(path, value, "names no target: target_queue, target_kv or slo_ttft_p90_ms"))


def _slo_problems(path: str, value: object) -> list[Problem]:
    if not isinstance(value, Mapping):
        return [Problem(path, value, f"must be a mapping of classes ({', '.join(CLASSES)}) to milliseconds")]
    return [
        Problem(f"{path}.{name}", limit, f"must be {', '.join(CLASSES)} with milliseconds", "1 to 3600000")
        for name, limit in value.items()
        if name not in CLASSES
        or isinstance(limit, bool)
        or not isinstance(limit, int | float)
        or not 1 <= limit <= 3.6e6
    ]


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= 3.6e6


def check_schedule(path: str, value: object, problems: list[Problem]) -> None:
    given = _mapping(path, value, problems)
    known = ("timezone", "windows")
    for name in given:
        if name not in known:
            problems.append(Problem(f"{path}.{name}", given[name], f"unknown key{suggestion(name, known)}"))
    zone = given.get("timezone", "UTC")
    if not isinstance(zone, str) or not _is_zone(zone):
        problems.append(Problem(f"{path}.timezone", zone, "must be a time zone, for example UTC or Europe/Berlin"))
    windows = given.get("windows", [])
    if not isinstance(windows, list) or len(windows) > MAX_WINDOWS:
        problems.append(Problem(f"{path}.windows", windows, f"must be a list of 0 to {MAX_WINDOWS} windows"))
        return
    for index, window in enumerate(windows):
        _check_window(f"{path}.windows[{index}]", window, problems)


def _check_window(path: str, value: object, problems: list[Problem]) -> None:
    given = _mapping(path, value, problems)
    known = ("days", "from", "to", "replicas")
    for name in given:
        if name not in known:
            problems.append(Problem(f"{path}.{name}", given[name], f"unknown key{suggestion(name, known)}"))
    _check_list(f"{path}.days", given.get("days", list(DAYS)), DAYS.__contains__, f"days: {', '.join(DAYS)}", problems)
    for name in ("from", "to"):
        time = given.get(name)
        if not isinstance(time, str) or not _TIME.fullmatch(time) or (name == "from" and time == "24:00"):
            problems.append(Problem(f"{path}.{name}", time, 'must be a time of day in quotes, "00:00" to "24:00"'))
    replicas = given.get("replicas")
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
        problems.append(Problem(f"{path}.replicas", replicas, "must be a whole number", f"0 to {MAX_REPLICAS}"))


def _check_list(path: str, value: object, fits: Callable[[Any], bool], words: str, problems: list[Problem]) -> None:
    if not isinstance(value, list) or len(set(map(str, value))) != len(value) or not all(map(fits, value)):
        problems.append(Problem(path, value, f"must be a list of {words}, each once"))


def _mapping(path: str, value: object, problems: list[Problem]) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    problems.append(Problem(path, value, "must be a mapping"))
    return {}


def _is_node(value: object) -> bool:
    return isinstance(value, str) and bool(_NODE.fullmatch(value))


def _is_label(value: object) -> bool:
    return isinstance(value, str) and bool(_LABEL.fullmatch(value))


def _is_zone(name: str) -> bool:
    if name == "UTC":
        return True  # also where no time zones are installed
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


CHECKS: dict[str, Callable[[str, object, list[Problem]], None]] = {
    "update": check_update,
    "placement": check_placement,
    "schedule": check_schedule,
    "autoscale": check_autoscale,
}
