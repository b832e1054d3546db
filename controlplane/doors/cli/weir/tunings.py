"""`weir tune`: a search of a policy's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .api import PASS, Failed, quoted
from .waiting import cancelled_with_me, follow

if TYPE_CHECKING:
    import argparse

    from .api import Api

SCALES = ("log", "linear")  # scales for a bound of `weir tune`


def tune_policy(api: Api, options: argparse.Namespace) -> int:
    """Search the parameters of the live version in the twin; with --draft, open a draft with a winner."""
    asked = {"pool": options.pool, "trace": options.trace, "trials": options.trials, "workers": options.workers,
             "seed": options.seed, "parameters": [_range(text) for text in options.parameter],
             "objectives": options.objective, "time_limit_s": options.time, "held_out": options.held_out}  # fmt: skip
    path = f"/policies/{quoted(options.name)}/tunings"
    made, _ = api.call("POST", path, {name: value for name, value in asked.items() if value is not None})
    print(f"tuning {made['id']}: {options.url}/policies/{options.name}/tunings/{made['id']}/", flush=True)
    with cancelled_with_me(api, f"{path}/{made['id']}/cancel"):
        one = follow(api, f"{path}/{made['id']}", options.timeout, _words)
    if one["status"] != "done":
        raise Failed(f"tuning {one['id']} {one['status']}: {one['cause']}")
    _print_tuning(one)
    if options.draft:
        _draft_of(api, path, one, options)
    return PASS


def _range(text: str) -> dict[str, Any]:
    """PATH, PATH=LOW:HIGH, PATH=LOW:HIGH:STEP, or PATH=LOW:HIGH:log."""
    path, _, bounds = text.partition("=")
    given = dict(zip(("low", "high", "step"), bounds.split(":"), strict=False))
    scale = {"log": given.pop("step") == "log"} if given.get("step") in SCALES else {}
    try:
        if bounds.count(":") > 2:
            raise ValueError
        return {"path": path, **{name: float(value) for name, value in given.items() if value}, **scale}
    except ValueError:
        raise Failed(f"--bound {text}: PATH or PATH=LOW:HIGH[:STEP|:log|:linear] with numbers") from None


def _words(one: dict[str, Any]) -> tuple[str, str]:
    return one["status"], f": {one['done']:,} of {one['total']:,} trials"


def _print_tuning(one: dict[str, Any]) -> None:
    print(f"simulated on {one['trace']['name']} ({one['trace']['played']:,} requests), {one['twin']['about']}")
    for winner in one["result"]["winners"]:
        best = f"trial {winner['trial']}, best in {', '.join(winner['reasons'])}"
        print(f"{best}, on {winner['check']['n']:,} held-out requests:")
        for row in winner["effect"]:
            print("  " + _goal_line(row))
    for text in one["result"]["not_tested"]:
        print(f"  not tested: {text}")


def _goal_line(row: dict[str, Any]) -> str:
    def text(name: str) -> str:
        return "unknown" if row[name] is None else f"{row[name]:.4g}"

    interval = f" ({text('low')} to {text('high')}, n = {row['n']:,})"
    return f"{row['metric']}: {text('live')} → {text('tuned')}, {text('difference')}{interval}: {row['verdict']}"


def _draft_of(api: Api, path: str, one: dict[str, Any], options: argparse.Namespace) -> None:
    trial = next((each["trial"] for each in one["result"]["winners"] if options.draft in each["reasons"]), None)
    if trial is None:
        raise Failed(f"tuning {one['id']} has no winner to open as a draft")
    api.call("POST", f"{path}/{one['id']}/draft", {"trial": trial})
    print(f"trial {trial} is the draft of {options.name}, not published: {options.url}/policies/{options.name}/draft")
