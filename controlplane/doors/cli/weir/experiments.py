"""`weir experiment`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .api import FAIL, INCONCLUSIVE, PASS, Failed
from .files import read_json, write
from .waiting import cancelled_with_me, follow

if TYPE_CHECKING:
    import argparse

    from .api import Api

VERDICTS = {"pass": PASS, "none": PASS, "fail": FAIL, "inconclusive": INCONCLUSIVE}


def run_experiment(api: Api, options: argparse.Namespace) -> int:
    made, _ = api.call("POST", "/experiments", read_json(options.file))
    print(f"experiment {made['id']}: {options.url}/experiments/{made['id']}", flush=True)
    if not options.wait:
        return PASS
    with cancelled_with_me(api, f"/experiments/{made['id']}/cancel"):
        ended = follow(api, f"/experiments/{made['id']}", options.timeout, _words)
    return _verdict(api, ended, options)


def wait_experiment(api: Api, options: argparse.Namespace) -> int:
    return _verdict(api, follow(api, f"/experiments/{options.number}", options.timeout, _words), options)


def _words(one: dict[str, Any]) -> tuple[str, str]:
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
    if one["status"] != "done":
        raise Failed(f"experiment {one['id']} {one['status']}: {one['cause']}")
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
