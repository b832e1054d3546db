#!/usr/bin/env python3
"""Django's command line, with Weir's own commands (`manage.py help`)."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    from django.core.management import execute_from_command_line

    from controlplane.env import BadSetting

    try:
        execute_from_command_line(sys.argv)
    except BadSetting as error:
        sys.exit(f"weir: {error}")


if __name__ == "__main__":
    main()
