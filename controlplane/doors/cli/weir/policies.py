"""`weir policy` and `weir models`: policies and the document Models, stored in files."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
from typing import Any

from .api import FAIL, PASS, Api, Failed
from .deliveries import show_foreseen
from .files import DraftedFile, PolicyAnswer, changes_as_text, differences, put_out, read_json, text_of, write

YAML = "application/yaml"


def export_policy(api: Api, options: argparse.Namespace) -> int:
    put_out(options.output, PolicyAnswer.of(api, options.name).live.as_file().encode())
    return PASS


def diff_policy(api: Api, options: argparse.Namespace) -> int:
    file = DraftedFile.read(options.file).version
    live = PolicyAnswer.of(api, file.policy).live
    changes = changes_as_text(differences(live.document, file.document))
    print(f"{file.policy} v{live.number}: " + (f"the file differs\n{changes}" if changes else "as in the file"))
    return FAIL if changes else PASS


def apply_policy(api: Api, options: argparse.Namespace) -> int:
    """Publish the document of a file, unless it is already live. Publication is refused if another version has gone
    live since the file was made.
    """
    file = DraftedFile.read(options.file)
    name, document = file.version.policy, file.version.document
    policy = PolicyAnswer.of(api, name)
    changes = changes_as_text(differences(policy.live.document, document))
    if not changes:
        print(f"{name}: v{policy.live.number} is live with this document; nothing to do")
        return PASS
    print(f"{name}: v{policy.live.number} → the file\n{changes}")
    asked = {"document": document, "based_on": file.version.number, "reason": options.reason}
    if options.emergency:
        asked["emergency"] = options.emergency
    if options.deliver:
        return _deliver(api, policy, asked, options)
    made, _ = api.call("POST", f"{policy.path}/versions", {**asked, "dry_run": options.dry_run})
    if options.dry_run:
        print(f"{name}: v{made['version']['number']} {made['summary']}")
        return PASS
    print(f"{name}: v{made['version']['number']} is live: {made['summary']}")
    if options.file != "-":
        kept = {**file.whole, "version": made["version"]["number"]}
        write(options.file, (json.dumps(kept, indent=2) + "\n").encode())
    return PASS


def _deliver(api: Api, policy: PolicyAnswer, asked: dict[str, Any], options: argparse.Namespace) -> int:
    """Propose the document only; `weir deliver` starts the delivery and waits."""
    plan = {"plan": read_json(options.plan)} if options.plan else {}
    answer, _ = api.call("POST", f"{policy.path}/deliveries", {**asked, **plan, "dry_run": options.dry_run})
    made = answer["delivery"]
    if made is None:
        print(f"{policy.name}: v{answer['live']} is live with this document; nothing to do")
    elif options.dry_run:
        print(f"{policy.name}: would be {made['state']}")
        show_foreseen(made)
    else:
        print(f"{policy.name}: delivery {made['id']} is {made['state']}: {options.url}/deliveries/{made['id']}")
    return PASS


def draft_of(api: Api, policy: PolicyAnswer, document: Any) -> str:
    """Return the ETag of a draft with this document. Raise Failed if another draft is open."""
    path, held = f"{policy.path}/draft", policy.draft
    if held is not None and held.document not in (document, policy.live.document):
        raise Failed(f"{held.updated_by} has a draft of {policy.name} open: publish or discard it first")
    draft, etag = api.call("POST", path)
    try:
        return api.call("PATCH", path, {"document": document, "based_on": policy.live.number}, etag)[1]
    except Failed:
        if held is None:
            api.call("DELETE", path, etag=draft["etag"])
        raise


def get_models(api: Api, options: argparse.Namespace) -> int:
    put_out(options.output, api.text("/models", accept=YAML))
    return PASS


def apply_models(api: Api, options: argparse.Namespace) -> int:
    """Publish the document of a file; a document that is already live changes nothing."""
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
