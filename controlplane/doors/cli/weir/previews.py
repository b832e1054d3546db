"""`weir preview`: a policy file beside the live version, simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .api import PASS, Failed
from .files import DraftedFile, PolicyAnswer
from .policies import draft_of
from .waiting import cancelled_with_me, follow

if TYPE_CHECKING:
    import argparse

    from .api import Api


def preview_policy(api: Api, options: argparse.Namespace) -> int:
    """Simulate the document of a file beside the live version, on recorded traffic."""
    file = DraftedFile.read(options.file).version
    policy = PolicyAnswer.of(api, file.policy)
    path, etag = policy.path, draft_of(api, policy, file.document)
    try:
        asked = {"pool": options.pool, "trace": options.trace}
        made, _ = api.call("POST", f"{path}/draft/preview", asked, etag)
        with cancelled_with_me(api, f"{path}/previews/{made['id']}/cancel"):
            one = follow(api, f"{path}/previews/{made['id']}", options.timeout, _words)
    finally:
        if policy.draft is None:
            api.call("DELETE", f"{path}/draft", etag=etag)
    if one["status"] != "done":
        raise Failed(f"preview {one['id']} {one['status']}: {one['cause']}")
    _print_preview(one)
    return PASS


def _words(one: dict[str, Any]) -> tuple[str, str]:
    return one["status"], f": {one['done']:,} of {one['total']:,} requests"


def _print_preview(one: dict[str, Any]) -> None:
    print(f"simulated on {one['trace']['name']} ({one['trace']['played']:,} requests), {one['twin']['about']}")
    for caution in one["trust"]:
        print(f"  caution: {caution['text']}")
    changed = one["result"]["changed"]
    print(f"  {changed['decisions']:,} of {changed['of']:,} decisions change")
    for name, found in one["result"]["classes"].items():
        for metric in found["metrics"]:
            if metric["relative"] is not None:
                print(f"  {name}, {metric['metric']}: {100 * metric['relative']:+.1f} %: {metric['verdict']}")
