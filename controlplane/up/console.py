"""What the operator reads in the terminal: one short line for each thing that happens, with the process in front."""

import sys

WIDTH = 12


def say(who: str, text: str) -> None:
    print(f"{who:<{WIDTH}} {text}", flush=True)


def block(text: str) -> None:
    print(text, flush=True)


def complain(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr, flush=True)
