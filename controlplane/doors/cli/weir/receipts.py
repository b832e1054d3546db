"""`weir explain`."""

from __future__ import annotations

import argparse
import urllib.parse

from .api import FAIL, PASS, Api, quoted


def explain(api: Api, options: argparse.Namespace) -> int:
    query = urllib.parse.urlencode({"policy": options.policy, "version": options.version})
    one = api.get(f"/receipts/{quoted(options.request)}/explain?{query}")
    for title, key in (("recorded", "recorded"), (f"{one['policy'] or 'default'} v{one['version']}", "recomputed")):
        found = one[key]
        print(
            f"{title}: {found['instance'] or 'no instance'}, class {found['class']}, "
            f"by {found['rule']} of {found['strategy']}"
        )
        for reason in found["reasons"]:
            print(f"  {reason}")
    print("the same decision" if one["same"] else f"differs in {', '.join(one['changed'])}")
    return PASS if one["same"] else FAIL
