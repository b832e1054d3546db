"""`weir budget` and `weir batch`: what keys and pools may spend, and the batches of all keys."""

from __future__ import annotations

import argparse
from typing import Any

from .api import PASS, Api, Failed, quoted
from .files import put_out


def list_budgets(api: Api, options: argparse.Namespace) -> int:
    for one in api.get("/budgets"):
        print(_line(one))
    return PASS


def set_budget(api: Api, options: argparse.Namespace) -> int:
    """Create a budget, or change the budget of the same owner, unit and period."""
    terms = {"limit": options.limit, "warn_at": options.warn_at, "refuse": not options.warn_only}
    found = _budget(api, options)
    if found is not None:
        made, _ = api.call("PATCH", f"/budgets/{found['id']}", terms)
    else:
        owner = {"pool": options.pool} if options.pool else {"key": _key(api, options.key)}
        made, _ = api.call("POST", "/budgets", {**owner, "unit": options.unit, "per": options.per, **terms})
    print(_line(made))
    return PASS


def delete_budget(api: Api, options: argparse.Namespace) -> int:
    found = _budget(api, options)
    if found is None:
        raise Failed(f"{options.key or options.pool} has no budget in {options.unit} per {options.per}")
    api.call("DELETE", f"/budgets/{found['id']}")
    print(f"deleted: {_line(found)}")
    return PASS


def _budget(api: Api, options: argparse.Namespace) -> Any:
    wanted = (options.key or "", options.pool or "", options.unit, options.per)
    every = api.get("/budgets")
    return next((one for one in every if wanted == (one["key_name"], one["pool"], one["unit"], one["per"])), None)


def _key(api: Api, name: str) -> int:
    for one in api.get("/keys"):
        if one["name"] == name and one["revoked_at"] is None:
            number: int = one["id"]
            return number
    raise Failed(f"there is no API key {name}")


def _line(one: Any) -> str:
    owner = f"pool {one['pool']}" if one["pool"] else f"API key {one['key_name']}"
    beyond = "" if one["refuse"] else ", only warns"
    share = f"{one['spent']:,.10g} spent in {one['period']} ({100 * one['used_ratio']:.1f} %)"
    return f"{owner}: {one['limit']:,.10g} {one['unit']} per {one['per']}{beyond}; {share}"


def list_batches(api: Api, options: argparse.Namespace) -> int:
    for one in api.get("/batches"):
        counts = f"{one['completed']:,} answered, {one['failed']:,} failed of {one['total']:,}"
        print(f"{one['name']}  {one['state']}  {counts}")
    return PASS


def cancel_batch(api: Api, options: argparse.Namespace) -> int:
    made, _ = api.call("POST", f"/batches/{quoted(options.name)}/cancel")
    print(f"{made['name']}  {made['state']}: what was answered is kept")
    return PASS


def get_batch(api: Api, options: argparse.Namespace) -> int:
    """Write the answers of a batch, or the lines without an answer."""
    file = "errors" if options.errors else "output"
    put_out(options.output, api.text(f"/batches/{quoted(options.name)}/{file}.jsonl"))
    return PASS
