#!/usr/bin/env python3
"""Django's command line, with Weir's own commands (`manage.py help`)."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C, also while modules are imported


def run() -> None:
    from django.core.management import execute_from_command_line

    from controlplane.base.process.env import BadSetting

    try:
        if sys.argv[1:2] == ["up"]:
            # Without Django's set-up, which takes longer than starting the servers; `up` does it meanwhile.
            from controlplane.management.commands.up import Command

            Command().run_from_argv(sys.argv)
        elif sys.argv[1:2] == ["deliver"] and any(word.partition("=")[0] == "--stop" for word in sys.argv):
            # Without Django's set-up: it needs Redis only, and not a second of imports.
            from controlplane.traffic.deliveries.stop import main as stop

            sys.exit(stop(sys.argv[2:]))
        else:
            execute_from_command_line(sys.argv)
    except BadSetting as error:
        sys.exit(f"weir: {error}")


if __name__ == "__main__":
    main()
