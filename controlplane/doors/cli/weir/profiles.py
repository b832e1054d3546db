"""`weir profile`: the step times of a model on a GPU, from measured kernel tables."""

from __future__ import annotations

import argparse
import json

from .api import PASS, Api
from .files import text_of, write


def make_profile(api: Api, options: argparse.Namespace) -> int:
    """Make the profile of a model on a GPU, and print its source and its expected error."""
    asked = {name: getattr(options, name) for name in ("model", "gpu", "tp", "dp", "ep", "quantization", "kv_dtype")}
    config = json.loads(text_of(options.config)) if options.config else None
    made, _ = api.call("POST", "/profiles", asked | {"config": config})
    if options.output:
        write(options.output, made["profile"].encode())
    if options.json:
        print(made["profile"])
        return PASS
    layout = f"tp {made['tp']}" + "".join(f", {name} {made[name]}" for name in ("dp", "ep") if made[name] > 1)
    print(f"{made['name']} on {made['gpu']}, {layout}; {made['formats']}")
    print(f"  {made['source']}; {100 * made['measured']:.0f} % of its time measured")
    print(f"  between its points {100 * made['grid_error']:.1f} %, at most {100 * made['grid_worst']:.0f} %")
    expected = made["expected"]
    print(
        f"  expected of a warm engine ({made['family']}): TPOT {100 * expected['tpot']:.0f} %, "
        f"E2E {100 * expected['e2e']:.0f} %, mean TTFT {100 * expected['ttft_mean']:.0f} %"
    )
    for note in made["notes"]:
        print(f"  caution: {note}")
    return PASS
