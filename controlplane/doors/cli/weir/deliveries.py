"""`weir deliver`: delivers a document step by step."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from .api import ERROR, FAIL, INCONCLUSIVE, PASS, Api, Failed, quoted
from .files import DraftedFile, VersionAnswer, read_json, write
from .waiting import EVERY_S, ProgressLines

# By the `outcome` of the delivery. Anything else is an error.
OUTCOMES = {"delivered": PASS, "guard": FAIL, "person": FAIL, "needs_person": INCONCLUSIVE, "time": INCONCLUSIVE}
WORDS = {
    "delivered": "delivered",
    "guard": "ended by a guard or a router; it is not live",
    "person": "ended by a person; it is not live",
    "needs_person": "needs a person",
    "time": "out of time",
}
START_EVERY_S = 15.0  # interval between attempts to start a delivery that a freeze holds back
ACTIONS = {
    "abort": "abort it: the live version decides every request again within a second; safe to repeat",
    "pause": "pause its current step",
    "resume": "restart the paused step; needs --reason",
    "advance": "advance to the next step, whatever the guards say; needs --reason",
}


def deliver(api: Api, options: argparse.Namespace) -> int:
    """Propose the document of a file and start the delivery. A repeated call continues the delivery of the first."""
    file = _document(options)
    path = f"/policies/{quoted(file.policy)}/deliveries"
    answer, _ = api.call("POST", path, _wanted(file, options))
    if answer["delivery"] is None:
        print(f"{file.policy}: v{answer['live']} is live with this document: already live")
        return PASS
    one: dict[str, Any] = answer["delivery"]
    if options.dry_run:
        print(f"{file.policy}: v{one['base']['number']} → v{one['candidate']['number']} would be {one['state']}")
        show_foreseen(one)
        return PASS
    print(f"delivery {one['id']}: {options.url}/deliveries/{one['id']}", flush=True)
    if not options.wait:
        return _status(_started(api, one, options.reason))
    status = _waited(api, one["id"], options)
    if status == PASS and options.file != "-" and not options.policy:
        _write_number(options.file, one["candidate"]["number"])
    return status


def wait_delivery(api: Api, options: argparse.Namespace) -> int:
    return _waited(api, _named(api, options)["id"], options)


def delivery_status(api: Api, options: argparse.Namespace) -> int:
    one = _named(api, options)
    print(json.dumps(one, indent=2) if options.json else "".join(_words(one)))
    return _status(one)


def act(api: Api, options: argparse.Namespace) -> int:
    """Abort, pause, resume or advance a delivery."""
    one = _named(api, options)
    if options.action == "abort" and not one["open"]:
        print(f"delivery {one['id']} is {one['state']}: nothing to abort")
        return PASS
    made, _ = api.call("POST", f"/deliveries/{one['id']}/{options.action}", {"reason": options.reason})
    print("".join(_words(made)))
    return PASS


def show_foreseen(one: dict[str, Any]) -> None:
    """Print the effects that the plan can detect; an older control plane does not report them."""
    found = one.get("foreseen") or {"traffic": "", "lines": []}
    if found["traffic"]:
        print(f"  what it can show, {found['traffic']}")
    for line in found["lines"]:
        print(f"  {line['text']}")


# Arguments


def _document(options: argparse.Namespace) -> VersionAnswer:
    """Return the content of the file from `weir policy export`, or, with --policy, of a document alone, which has no
    base."""
    if options.policy:
        return VersionAnswer(options.policy, 0, read_json(options.file))
    return DraftedFile.read(options.file).version


def _wanted(file: VersionAnswer, options: argparse.Namespace) -> dict[str, Any]:
    given = {
        "document": file.document,
        "based_on": file.number or None,
        "plan": read_json(options.plan) if options.plan else None,
        "pools": options.pool or None,
        "start": {"at": options.at, "zone": options.zone} if options.at else None,
        "reason": options.reason,
        "again": options.again,
        "emergency": options.emergency,
        "dry_run": options.dry_run,
    }
    return {name: value for name, value in given.items() if value is not None}


def _named(api: Api, options: argparse.Namespace) -> dict[str, Any]:
    """Return the delivery with this id, or the newest delivery of the policy."""
    if (options.id is None) == (not options.policy):
        raise Failed("name a delivery by its id, or its policy by --policy")
    if options.id is not None:
        found: dict[str, Any] = api.get(f"/deliveries/{options.id}")
        return found
    newest: list[dict[str, Any]] = api.get(f"/policies/{quoted(options.policy)}/deliveries?limit=1")
    if not newest:
        raise Failed(f"policy {options.policy} has had no delivery")
    return newest[0]


# Waiting


def _waited(api: Api, number: int, options: argparse.Namespace) -> int:
    with _goes_on_without_me(api, number, abort=options.abort_on_exit):
        one = _followed(api, number, options)
    if options.results:
        write(options.results, (json.dumps(one, indent=2) + "\n").encode())
    status = _status(one)
    print(f"delivery {number}: {WORDS.get(one['outcome'], f'not ended after {options.timeout:g} s; it continues')}")
    return status if one["outcome"] else INCONCLUSIVE


def _followed(api: Api, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Wait until the delivery has an outcome or the time is over. A proposed delivery waits for its approvals."""
    end, start_at, lines = time.monotonic() + options.timeout, time.monotonic(), ProgressLines()
    while True:
        one: dict[str, Any] = api.get(f"/deliveries/{number}")
        refused = ""
        if _is_startable(one) and time.monotonic() >= start_at:
            start_at = time.monotonic() + START_EVERY_S
            one, refused = _tried_to_start(api, one, options.reason)
        lines.show(*_words(one, refused))
        if (one["outcome"] and one["state"] != "proposed") or time.monotonic() >= end:
            return one
        time.sleep(EVERY_S)


def _is_startable(one: dict[str, Any]) -> bool:
    return one["state"] == "ready" and one["starts_at"] is None


def _started(api: Api, one: dict[str, Any], reason: str) -> dict[str, Any]:
    if _is_startable(one):
        one = api.call("POST", f"/deliveries/{one['id']}/start", {"reason": reason})[0]
    print("".join(_words(one)), flush=True)
    return one


def _tried_to_start(api: Api, one: dict[str, Any], reason: str) -> tuple[dict[str, Any], str]:
    """Return (the delivery, why it did not start): a freeze may end, and another client may have started it."""
    try:
        return api.call("POST", f"/deliveries/{one['id']}/start", {"reason": reason})[0], ""
    except Failed as failed:
        if failed.status not in (409, 412):
            raise
        return one, str(failed)


def _words(one: dict[str, Any], refused: str = "") -> tuple[str, str]:
    """Return (the delivery's state, the part of it that changes while it lasts)."""
    share = f", {100 * one['share']:g} %" if one["share"] else ""
    why = refused or one["why"]
    where = f"{one['state']}, step {one['step']} of {one['steps']}{share}"
    state = f"{one['policy']} v{one['candidate']['number']}: {where}"
    return f"{state}{why and f': {why}'}", f", {one['step_clock_s']:.0f} s" if one["state"] == "step" else ""


def _status(one: dict[str, Any]) -> int:
    """Return the exit status; a delivery that is still running does not count as a failure."""
    return OUTCOMES.get(one["outcome"], ERROR) if one["outcome"] else PASS


@contextlib.contextmanager
def _goes_on_without_me(api: Api, number: int, *, abort: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if abort:
            api.call("POST", f"/deliveries/{number}/abort", {"reason": "the command that waited for it was stopped"})
            raise Failed(f"stopped, and delivery {number} aborted") from None
        raise Failed(
            f"stopped; delivery {number} continues: weir deliver wait {number}, or weir deliver abort {number}"
        ) from None


def _write_number(name: str, number: int) -> None:
    kept = {**DraftedFile.read(name).whole, "version": number}
    write(name, (json.dumps(kept, indent=2) + "\n").encode())
