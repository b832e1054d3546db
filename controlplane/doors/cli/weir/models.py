"""`weir models`: the document Models."""

from __future__ import annotations

import sys
import urllib.parse
from typing import TYPE_CHECKING

from .api import PASS
from .files import text_of, write

if TYPE_CHECKING:
    import argparse

    from .api import Api

YAML = "application/yaml"


def get_models(api: Api, options: argparse.Namespace) -> int:
    text = api.text("/models", accept=YAML)
    if options.output:
        write(options.output, text)
    else:
        print(text.decode(), end="")
    return PASS


def apply_models(api: Api, options: argparse.Namespace) -> int:
    """Publish the document of a file; one that is live already changes nothing."""
    content = "application/json" if options.file.endswith(".json") else YAML
    text = sys.stdin.read() if options.file == "-" else text_of(options.file)
    asked = {"reason": options.reason, "dry_run": str(options.dry_run).lower()}
    if options.emergency:
        asked["emergency"] = options.emergency
    if options.based_on is not None:
        asked["based_on"] = str(options.based_on)
    made = api.put(f"/models?{urllib.parse.urlencode(asked)}", text.encode(), content)
    is_live = "" if made["dry_run"] else " is live:"
    print(f"models v{made['version']['number']}{is_live} {made['summary']}")
    return PASS


def roll_back_models(api: Api, options: argparse.Namespace) -> int:
    made, _ = api.call("POST", "/models/rollback", {"to": options.to, "reason": options.reason})
    print(f"models v{made['version']['number']} has the document of v{options.to}: {made['summary']}")
    return PASS
