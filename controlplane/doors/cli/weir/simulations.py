"""`weir preview`, `weir tune` and `weir experiment`: simulate and compare."""

from __future__ import annotations

import argparse
from typing import Any

from .api import FAIL, INCONCLUSIVE, PASS, Api, Failed, quoted
from .files import DraftedFile, PolicyAnswer, read_json, write
from .policies import draft_of
from .waiting import cancelled_with_me, follow

SCALES = ("log", "linear")  # scales for a bound of `weir tune`
VERDICTS = {"pass": PASS, "none": PASS, "fail": FAIL, "inconclusive": INCONCLUSIVE}


def preview_policy(api: Api, options: argparse.Namespace) -> int:
    """Simulate the document of a file against the live version, on recorded traffic."""
    file = DraftedFile.read(options.file).version
    policy = PolicyAnswer.of(api, file.policy)
    path, etag = policy.path, draft_of(api, policy, file.document)
    try:
        asked = {"pool": options.pool, "trace": options.trace}
        made, _ = api.call("POST", f"{path}/draft/preview", asked, etag)
        with cancelled_with_me(api, f"{path}/previews/{made['id']}/cancel"):
            one = follow(api, f"{path}/previews/{made['id']}", options.timeout, lambda one: _words(one, "requests"))
    finally:
        if policy.draft is None:
            api.call("DELETE", f"{path}/draft", etag=etag)
    _check_done("preview", one)
    _print_basis(one)
    for caution in one["trust"]:
        print(f"  caution: {caution['text']}")
    changed = one["result"]["changed"]
    print(f"  {changed['decisions']:,} of {changed['of']:,} decisions change")
    for name, found in one["result"]["classes"].items():
        for metric in found["metrics"]:
            if metric["relative"] is not None:
                print(f"  {name}, {metric['metric']}: {100 * metric['relative']:+.1f} %: {metric['verdict']}")
    return PASS


def _words(one: dict[str, Any], played: str) -> tuple[str, str]:
    return one["status"], f": {one['done']:,} of {one['total']:,} {played}"


def _check_done(job: str, one: dict[str, Any]) -> None:
    if one["status"] != "done":
        raise Failed(f"{job} {one['id']} {one['status']}: {one['cause']}")


def _print_basis(one: dict[str, Any]) -> None:
    print(f"simulated on {one['trace']['name']} ({one['trace']['played']:,} requests), {one['twin']['about']}")


def tune_policy(api: Api, options: argparse.Namespace) -> int:
    """Search the parameters of the live version in the twin; with --draft, open a draft with a winner."""
    asked = {"pool": options.pool, "trace": options.trace, "trials": options.trials, "workers": options.workers,
             "seed": options.seed, "parameters": [_range(text) for text in options.parameter],
             "objectives": options.objective, "time_limit_s": options.time, "held_out": options.held_out}  # fmt: skip
    path = f"/policies/{quoted(options.name)}/tunings"
    made, _ = api.call("POST", path, {name: value for name, value in asked.items() if value is not None})
    print(f"tuning {made['id']}: {options.url}/policies/{options.name}/tunings/{made['id']}/", flush=True)
    with cancelled_with_me(api, f"{path}/{made['id']}/cancel"):
        one = follow(api, f"{path}/{made['id']}", options.timeout, lambda one: _words(one, "trials"))
    _check_done("tuning", one)
    _print_basis(one)
    _print_tuning(one)
    if options.draft:
        _draft_winner(api, path, one, options)
    return PASS


def _range(text: str) -> dict[str, Any]:
    """Parse PATH, PATH=LOW:HIGH, PATH=LOW:HIGH:STEP, or PATH=LOW:HIGH:log."""
    path, _, bounds = text.partition("=")
    given = dict(zip(("low", "high", "step"), bounds.split(":"), strict=False))
    scale = {"log": given.pop("step") == "log"} if given.get("step") in SCALES else {}
    try:
        if bounds.count(":") > 2:
            raise ValueError
        return {"path": path, **{name: float(value) for name, value in given.items() if value}, **scale}
    except ValueError:
        raise Failed(f"--bound {text}: PATH or PATH=LOW:HIGH[:STEP|:log|:linear] with numbers") from None


def _print_tuning(one: dict[str, Any]) -> None:
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


def _draft_winner(api: Api, path: str, one: dict[str, Any], options: argparse.Namespace) -> None:
    trial = next((each["trial"] for each in one["result"]["winners"] if options.draft in each["reasons"]), None)
    if trial is None:
        raise Failed(f"tuning {one['id']} has no winner to open as a draft")
    api.call("POST", f"{path}/{one['id']}/draft", {"trial": trial})
    print(f"trial {trial} is the draft of {options.name}, not published: {options.url}/policies/{options.name}/draft")


def run_experiment(api: Api, options: argparse.Namespace) -> int:
    made, _ = api.call("POST", "/experiments", read_json(options.file))
    print(f"experiment {made['id']}: {options.url}/experiments/{made['id']}", flush=True)
    if not options.wait:
        return PASS
    with cancelled_with_me(api, f"/experiments/{made['id']}/cancel"):
        ended = follow(api, f"/experiments/{made['id']}", options.timeout, _progress)
    return _verdict(api, ended, options)


def wait_experiment(api: Api, options: argparse.Namespace) -> int:
    return _verdict(api, follow(api, f"/experiments/{options.number}", options.timeout, _progress), options)


def _progress(one: dict[str, Any]) -> tuple[str, str]:
    done = one["progress"]
    behind = done.get("queued_behind")
    if behind is not None:
        return f"queued behind {behind} experiment{'' if behind == 1 else 's'}" if behind else "queued, next to run", ""
    left = f", about {done['eta_s']:.0f} s left" if done["eta_s"] is not None else ""
    return f"{one['status']}: {done['runs_done']} of {done['runs']} runs", left


def _verdict(api: Api, one: dict[str, Any], options: argparse.Namespace) -> int:
    path = f"/experiments/{one['id']}"
    for file, kind in ((options.junit, "junit.xml"), (options.report, "report.md"), (options.results, "results")):
        if file:
            write(file, api.text(f"{path}/{kind}"))
    _check_done("experiment", one)
    results = api.get(f"{path}/results")
    for found in results["expectations"]:
        print("  " + _expectation_line(found))
    for warning in results["warnings"]:
        print(f"  warning: {warning}")
    print(f"{one['verdict'] if one['verdict'] != 'none' else 'done: nothing was expected'}")
    return VERDICTS[one["verdict"]]


def _expectation_line(one: dict[str, Any]) -> str:
    value = "unknown" if one["value"] is None else f"{one['value']:.4g}"
    if one["relative_to"] and one["ratio"] is not None:
        value = f"{one['ratio']:.3f} × {one['relative_to']}"
    interval = "" if one["low"] is None or one["high"] is None else f" ({one['low']:.4g} to {one['high']:.4g})"
    needed = f"; {one['needed_n']:,} requests would decide it" if one["needed_n"] else ""
    return f"{one['verdict']}: {one['arm']}, {one['class']}, {one['metric']} {one['limits']}: {value}{interval}{needed}"
