"""`weir fleet`."""

from __future__ import annotations

import argparse
import sys
import urllib.parse
from typing import Any

from .api import FAIL, PASS, Api
from .files import changes_as_text, text_of


def apply_fleet(api: Api, options: argparse.Namespace) -> int:
    content = "application/json" if options.file.endswith(".json") else "application/yaml"
    text = sys.stdin.read() if options.file == "-" else text_of(options.file)
    flags = {name: getattr(options, name) for name in ("dry_run", "prune", "reason", "emergency")}
    query = urllib.parse.urlencode({name: str(value).lower() if value in (True, False) else value
                                    for name, value in flags.items()})  # fmt: skip
    made = api.put(f"/fleet?{query}", text.encode(), content)
    for warning in made["warnings"]:
        print(f"warning: {warning}")
    for change in made["changes"]:
        print(_change_line(change))
    print(f"{len(made['changes'])} changes" + (", none made: a dry run" if made["dry_run"] else ""))
    return PASS


def _change_line(change: dict[str, Any]) -> str:
    fields = changes_as_text((one["path"], one["old"], one["new"]) for one in change["fields"])
    return f"{change['kind']} {change['pool']}: {change['effect']}" + (f"\n{fields}" if fields else "")


def discover_engines(api: Api, options: argparse.Namespace) -> int:
    """Discover engines that another system runs, without changing anything. Return FAIL unless all of them answer."""
    engine: dict[str, Any] = {
        name: getattr(options, name) for name in ("urls", "dns", "file", "engine_key") if getattr(options, name)
    }
    if options.tls_authorities:
        engine["tls"] = {"authorities": options.tls_authorities}
    if options.kubernetes:
        namespace, selector, port = options.kubernetes
        engine["kubernetes"] = {"namespace": namespace, "selector": selector, "port": port}
    found, _ = api.call("POST", "/fleet/discover", {"engine": engine})
    if found["trouble"]:
        print(f"the source does not answer: {found['trouble']}")
    for refused in found["refused"]:
        print(f"not connected to: {refused}")
    for one in found["engines"]:
        print(_engine_line(one))
    return PASS if found["engines"] and all(one["server"] for one in found["engines"]) else FAIL


def _engine_line(one: dict[str, Any]) -> str:
    if not one["server"]:
        why = f": {one['trouble']}" if one.get("trouble") else ""
        return f"{one['url']}  {f'does not answer{why}' if one['asked'] else 'not asked'}"
    server = f"{one['server']} {one['version']}".strip()
    events = "KV events" if one["kv_events"] else "no KV events"
    lacks = [f"for an exact index it lacks {', '.join(one['lacks'])}"] if one.get("lacks") else []
    models = ", ".join(one["models"]) or "no model"
    more = [*lacks, one["misplaced"]] if one.get("misplaced") else lacks
    return "  ".join((one["url"], server, models, events, f"role {one['role']}", *more))
