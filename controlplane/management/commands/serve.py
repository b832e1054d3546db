"""One process of Weir under systemd or in a container, with the command lines of `up`."""

import os
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from controlplane.base.process import private_files
from controlplane.doors.up import plan
from controlplane.doors.up.plan import Options, Surroundings
from controlplane.people.accounts.services import ensure_admin
from controlplane.traffic.policies.services import ensure_default_policy, ensure_offload_policy

Argv = tuple[str, ...]


def web(options: Options, around: Surroundings) -> Argv:
    return plan.web(options, around).argv


def router(options: Options, around: Surroundings) -> Argv:
    """Return a router's command line, without Redis' URL: its password would show in the process list."""
    name = f"{socket.gethostname()}-{options.router_port}"
    return (around.python, "-m", "router", "--host", options.host, "--port", str(options.router_port), "--id", name)


def index(options: Options, around: Surroundings) -> Argv:
    settings.INDEX_SOCKET.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    (process,) = plan.index(around)
    return process.argv


def control(options: Options, around: Surroundings) -> Argv:
    """Return a control worker's command line. One of several workers leads; their names differ, as each one reports
    separately.
    """
    name = f"control@{socket.gethostname()}-{os.getpid()}"
    return plan.celery(around.python, name, "control", f"--concurrency={plan.THREADS}", "--control")


def experiments(options: Options, around: Surroundings) -> Argv:
    return plan.worker(around, "experiments", "experiments", "--concurrency=1").argv


PROCESSES: dict[str, Callable[[Options, Surroundings], Argv]] = {
    "web": web,
    "router": router,
    "index": index,
    "control": control,
    "experiments": experiments,
}


class Command(BaseCommand):
    help = "Run one process of Weir, or `prepare` the database for them; `manage.py node` runs a node."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("process", choices=["prepare", *PROCESSES])
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: %(default)s")
        parser.add_argument("--port", type=int, help="default: 8000 of web, 8080 of a router")
        parser.add_argument("--shared-port", type=int, help="of a router: listen there too, together with others")
        parser.add_argument("--index", action="store_true", help="of a router: share the index of `serve index`")

    def handle(self, *args: Any, **given: Any) -> None:
        if given["process"] == "prepare":
            self._prepare()
            return
        standard = Options()
        options = Options(
            host=given["host"],
            web_port=given["port"] or standard.web_port,
            router_port=given["port"] or standard.router_port,
        )
        around = Surroundings(sys.executable, settings.REDIS_URL, index_socket=str(settings.INDEX_SOCKET))
        argv = PROCESSES[given["process"]](options, around)
        if given["process"] != "router" and (given["shared_port"] or given["index"]):
            raise CommandError("--shared-port and --index go with router only")
        if given["shared_port"]:
            argv += ("--shared-port", str(given["shared_port"]))
        if given["index"]:
            argv += ("--index", str(settings.INDEX_SOCKET))
        # exec keeps the pid that the supervisor knows.
        os.environ["REDIS_URL"] = settings.REDIS_URL
        os.execv(argv[0], argv)  # noqa: S606 - our own interpreter, no shell

    def _prepare(self) -> None:
        """Apply migrations, and create the administrator and the first policies. Safe to repeat."""
        if opened := private_files.tighten(settings.DATA_DIR):
            self.stdout.write(f"closed to other users: {private_files.describe(opened)}")
        call_command("migrate", interactive=False)
        if password := ensure_admin().password:
            self.stdout.write(f"user admin, password {password}  (shown this once)")
        ensure_default_policy()
        ensure_offload_policy()
