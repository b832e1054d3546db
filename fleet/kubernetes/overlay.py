"""Merges a template into an object, like Kubernetes' strategic merge for the lists of a Pod. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]  # a manifest, or a part of one
_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
}
_DEEP = ("containers", "initContainers")  # lists whose items are merged; items of other lists are replaced


def merged(base: Json, over: Json) -> Json:
    """Merge `over` into `base`: values of `over` win; everything else stays."""
    return {**base, **{name: _value(name, base.get(name), value) for name, value in over.items()}}


def _value(name: str, base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return merged(base, over)
    if name in _KEYS and isinstance(base, list) and isinstance(over, list):
        return _named(base, over, _KEYS[name], deep=name in _DEEP)
    return over


def _named(base: Sequence[Any], over: Sequence[Any], key: str, *, deep: bool) -> list[Any]:
    found = {one.get(key): one for one in base}
    for one in over:
        there = found.get(one.get(key))
        found[one.get(key)] = merged(there, one) if deep and there is not None else one
    return list(found.values())
