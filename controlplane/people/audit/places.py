"""Finds the page of an audit entry's object, by its action and subject. Pure."""

import re
from urllib.parse import quote

LISTS = {
    "budget": "/use/",
    "channel": "/channels/",
    "experiment": "/experiments/",
    "fleet": "/fleet/",
    "freeze": "/freezes/",
    "key": "/keys/",
    "models": "/models/",
    "batch": "/batches/",
    "profile": "/fleet/profiles/",
    "share": "/shares/",
    "token": "/tokens/",
    "trace": "/experiments/traces/",
    "user": "/users/",
}
# Subjects with their name or number in the address of their page
OWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"policy (?P<of>[\w-]+) v(?P<number>\d+)"), "/policies/{of}/versions/{number}/"),
    (re.compile(r"policy (?P<of>[\w-]+)"), "/policies/{of}/"),
    (re.compile(r"experiment (?P<of>\d+)"), "/experiments/{of}/"),
    (re.compile(r"plan (?P<of>\d+)"), "/plans/{of}/"),
    (re.compile(r"pool (?P<of>[\w-]+)"), "/fleet/pools/{of}/"),
)
BY_ACTION = {"instance": "/fleet/instances/{of}/", "pool": "/fleet/pools/{of}/", "node": "/fleet/nodes/{of}/"}
NAME = re.compile(r"[\w.-]+")


def place(action: str, subject: str) -> str:
    """Return the address; empty if there is none."""
    kind = action.partition(".")[0]
    if kind in BY_ACTION and NAME.fullmatch(subject):
        return BY_ACTION[kind].format(of=quote(subject))
    for pattern, address in OWN:
        if found := pattern.fullmatch(subject):
            return address.format(**found.groupdict())
    return LISTS.get(kind, "")


# What triggers of a delivery did
VERBS = {
    "armed": "started in the routers",
    "fail": "stopped by a guard",
    "good": "goes on",
    "late": "not acknowledged in time",
    "pass": "step passed",
    "trip": "stopped by a router",
}


def words(action: str) -> str:
    """Say an action: policy.open_draft → policy: open draft."""
    kind, _, verb = action.partition(".")
    verb = VERBS.get(verb, verb) if kind == "delivery" else verb
    return f"{kind}: {verb}".replace("_", " ") if verb else kind
