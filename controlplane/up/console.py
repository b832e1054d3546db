"""The lines in the operator's terminal: one per event, with the name of the process in front."""

import sys

WIDTH = 12


def say(subject: str, text: str) -> None:
    print(f"{subject:<{WIDTH}} {text}", flush=True)


def block(text: str) -> None:
    print(text, flush=True)


def complain(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr, flush=True)
