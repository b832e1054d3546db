#!/usr/bin/env python3
"""Django's command line, with Weir's own commands (`manage.py help`)."""

from controlplane.doors.cli.command import manage

if __name__ == "__main__":
    manage()
