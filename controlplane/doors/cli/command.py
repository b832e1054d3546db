"""`weir`, the command of an installed wheel: commands for pipelines, the router, and every command of manage.py."""

import os
import runpy
import sys

PIPELINES = frozenset(  # the commands of controlplane/doors/cli/weir
    ["batch", "budget", "deliver", "experiment", "explain", "fleet", "models", "policy", "preview", "profile", "tune"]
)
ON_HOST = """
on this host:
  up                    everything on this machine
  router                a router alone
  replay, plan          from a trace file: what users would have felt under other routers and under Weir's;
                        the cheapest fleets for an SLO
  serve, node, doctor   one process, a host with engines, what this machine lacks
  help                  list every other command of this host; `manage deliver` and `manage explain`
                        are those of the host beside deliver and explain above
"""


def main() -> None:
    """Pass the arguments on to the program that they name; without a name, to the parser of the pipeline commands."""
    words = sys.argv[1:]
    if words[:1] == ["router"]:
        sys.argv[1:] = words[1:]
        runpy.run_module("router", run_name="__main__")
    elif words[:1] in (["plan"], ["replay"]):
        from controlplane.evidence.plan.command import main as from_trace

        sys.exit(from_trace(words))
    elif not words or words[0].startswith("-") or words[0] in PIPELINES:
        _pipelines()
    else:
        sys.argv[1:] = words[words[0] == "manage" :]
        manage()


def _pipelines() -> None:
    from controlplane.doors.cli import weir
    from router.contract.installation import VERSION

    weir.VERSION = VERSION  # before the modules that read it are imported
    from controlplane.doors.cli.weir.__main__ import run

    run(ON_HOST)


def manage() -> None:
    """Run Django's command line, with Weir's own commands."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        _manage()
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C, even while modules are being imported


def _manage() -> None:
    from django.core.management import execute_from_command_line

    from controlplane.base.process.env import BadSetting

    try:
        if sys.argv[1:2] == ["up"]:
            # Skips Django's set-up, which takes longer than starting the servers; `up` performs it meanwhile.
            from controlplane.management.commands.up import Command

            Command().run_from_argv(sys.argv)
        elif sys.argv[1:2] == ["deliver"] and any(word.partition("=")[0] == "--stop" for word in sys.argv):
            # Skips Django's set-up: this command needs only Redis, and imports would take a second.
            from controlplane.traffic.deliveries.stop import main as stop

            sys.exit(stop(sys.argv[2:]))
        else:
            execute_from_command_line(sys.argv)
    except BadSetting as error:
        sys.exit(f"weir: {error}")
