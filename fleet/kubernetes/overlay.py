"""Laying a template over an object: mappings are merged, lists of named things by their names. Pure.

As strategic merges of Kubernetes do it, for the lists that a Pod has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
}
_DEEP = ("containers", "initContainers")  # of the others one takes the place of the other: a volume has one source


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What `over` names it decides; everything else stays as it is in `base`."""
    return {**base, **{name: _value(name, base.get(name), value) for name, value in over.items()}}


def _value(name: str, base: Any, over: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return laid_over(base, over)
    if name in _KEYS and isinstance(base, list) and isinstance(over, list):
        return _named(base, over, _KEYS[name], deep=name in _DEEP)
    return over


def _named(base: Sequence[Any], over: Sequence[Any], key: str, *, deep: bool) -> list[Any]:
    found = {one.get(key): one for one in base}
    for one in over:
        there = found.get(one.get(key))
        found[one.get(key)] = laid_over(there, one) if deep and there is not None else one
    return list(found.values())
