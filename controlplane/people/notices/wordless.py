"""Notices for receivers who may not read text that people wrote: the event, names of things and numbers. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from controlplane.people.notices.events import EVENTS
from router.contract.values.json_value import JsonObject

NAME = r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,199}"  # name of a pool, an instance, a policy or a model; it has no blanks
SUBJECT = re.compile(rf"(?:policy|pool|instance|node) {NAME}(?: v\d+)?|Models(?: v\d+)?")
NAMED = ("policy", "pool", "pools", "instance", "node", "state", "unit", "per")  # facts whose texts are names
is_name = re.compile(NAME).fullmatch


def subject_of(subject: str) -> str:
    """Return the subject, or an empty text if a person named the object and its kind is not in NAMED."""
    return subject if SUBJECT.fullmatch(subject) else ""


def text_of(event: str, subject: str) -> str:
    return ": ".join(filter(None, (subject_of(subject), EVENTS[event])))


def facts_of(facts: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in facts.items() if _is_shown(name, value)}


def _is_shown(name: str, value: Any) -> bool:
    if isinstance(value, int | float):
        return True
    texts = value if isinstance(value, list) else [value]
    return name in NAMED and all(isinstance(text, str) and is_name(text) for text in texts)
