"""`weir policy`: policies that are kept in files."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from .api import Failed
from .files import PolicyAnswer, PolicyFile, VersionAnswer, changes_as_text, differences, read_json, write
from .statuses import FAIL, PASS

if TYPE_CHECKING:
    import argparse

    from .api import Api


def export_policy(api: Api, options: argparse.Namespace) -> int:
    text = PolicyAnswer.of(api, options.name).live.as_file()
    if options.output:
        write(options.output, text.encode())
    else:
        print(text, end="")
    return PASS


def diff_policy(api: Api, options: argparse.Namespace) -> int:
    file = PolicyFile.read(options.file).version
    live = PolicyAnswer.of(api, file.policy).live
    changes = changes_as_text(differences(live.document, file.document))
    print(f"{file.policy} v{live.number}: " + (f"the file differs\n{changes}" if changes else "as in the file"))
    return FAIL if changes else PASS


def apply_policy(api: Api, options: argparse.Namespace) -> int:
    """Publish the document of a file, once; refused when another version went live since the file was made."""
    file = PolicyFile.read(options.file)
    name, document = file.version.policy, file.version.document
    policy = PolicyAnswer.of(api, name)
    live = policy.live
    changes = changes_as_text(differences(live.document, document))
    if not changes:
        print(f"{name}: v{live.number} is live with this document; nothing to do")
        return PASS
    _check_base(api, policy, file.version)
    print(f"{name}: v{live.number} → the file\n{changes}")
    if options.dry_run:
        return PASS
    body = {"reason": options.reason}
    if options.deliver:
        made = _send(api, policy, document, "deliver", {**body, **_plan(options.plan)})
        print(f"{name}: delivery {made['id']} is {made['state']}: {options.url}/deliveries/{made['id']}")
        return PASS
    made = _send(api, policy, document, "publish", body)
    print(f"{name}: v{made['version']['number']} is live: {made['summary']}")
    if options.file != "-":
        kept = {**file.whole, "version": made["version"]["number"]}
        write(options.file, (json.dumps(kept, indent=2) + "\n").encode())
    return PASS


def _plan(name: str | None) -> dict[str, Any]:
    return {"plan": read_json(name)} if name else {}


def _send(api: Api, policy: PolicyAnswer, document: Any, verb: str, body: dict[str, Any]) -> Any:
    """Publish or deliver the document; a draft that was opened for it does not outlive a refusal."""
    etag = draft_of(api, policy, document)
    try:
        return api.call("POST", f"{policy.path}/draft/{verb}", body, etag)[0]
    except Failed as failed:
        if policy.draft is None and failed.status in (400, 403, 409, 412, 422):
            with contextlib.suppress(Failed):
                api.call("DELETE", f"{policy.path}/draft", etag=etag)
        raise


def _check_base(api: Api, policy: PolicyAnswer, file: VersionAnswer) -> None:
    if file.number == policy.live.number:
        return
    base = api.get(f"{policy.path}/versions/{file.number}")
    moved = changes_as_text(differences(base["document"], policy.live.document))
    if moved:
        raise Failed(
            f"the file was made from v{file.number}, and {policy.live.by} is live since:\n{moved}\nexport it again"
        )


def draft_of(api: Api, policy: PolicyAnswer, document: Any) -> str:
    """The ETag of a draft with this document. Failed when another one is open."""
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
