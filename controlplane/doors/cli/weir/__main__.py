"""Runs the folder, or the archive that the control plane makes of it, as a command."""

import signal
import sys
from typing import NoReturn

from .main import main


def run(epilog: str = "") -> NoReturn:
    # A shell without job control starts `cmd &` with SIGINT ignored; SIGTERM ends a wait in any case, like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(epilog))


if __name__ == "__main__":
    run()
