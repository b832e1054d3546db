"""`manage.py up`: all of Weir on this machine, from Redis to the demo traffic, until Ctrl-C."""

import asyncio
import os
import shlex
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.base.process import env, redis_server
from controlplane.doors.up import CannotStart, plan, preflight
from controlplane.doors.up.console import complain, say
from controlplane.doors.up.plan import Options, Surroundings
from controlplane.doors.up.supervisor import Hooks, Supervisor, cause
from controlplane.doors.up.weir import Weir, check_fleet, kill_engines, quiet


class Command(BaseCommand):
    help = "Run all of Weir on this machine: Redis, web, routers, Celery, and a demo fleet with traffic."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        standard = Options()
        parser.add_argument("--no-demo", action="store_true", help="start without the demo fleet and its traffic")
        parser.add_argument("--fleet", type=Path, metavar="FILE", help="apply this fleet document at the start")
        parser.add_argument("--web-port", type=int, default=standard.web_port, help="default: %(default)s")
        parser.add_argument("--router-port", type=int, default=standard.router_port, help="default: %(default)s")
        parser.add_argument("--routers", type=int, default=standard.routers, help="share the router port")
        parser.add_argument("--host", default=standard.host, help="address that web and routers listen on")
        parser.add_argument("--print-processes", action="store_true", help="print the command lines and exit")

    def handle(self, *args: Any, **given: Any) -> None:
        options = Options(
            host=given["host"],
            web_port=given["web_port"],
            router_port=given["router_port"],
            routers=given["routers"],
            demo=not given["no_demo"],
            fleet=given["fleet"] and given["fleet"].absolute(),
        )
        quiet()
        try:
            if given["print_processes"]:
                print_processes(options)
            else:
                bring_up(options)
        except (CannotStart, redis_server.NoRedis) as error:
            complain(str(error))
            sys.exit(1)


def print_processes(options: Options) -> None:
    for process in plan.processes(options, surroundings()):
        say(process.name, shlex.join(process.argv))


def bring_up(options: Options) -> None:
    preflight.check_options(options)
    preflight.prepare_folder(settings.DATA_DIR)
    with preflight.claim(settings.DATA_DIR):
        preflight.check_ports(options)
        around = surroundings()
        if options.fleet is not None:
            check_fleet(options.fleet)
        weir = Weir(options)
        hooks = Hooks(weir.prepare, weir.announce, weir.fleet_is_ready, weir.stop_engines, kill_engines)
        supervisor = Supervisor(
            plan.processes(options, around), settings.DATA_DIR, settings.BASE_DIR, environment(around), hooks
        )
        run(supervisor)


def run(supervisor: Supervisor) -> None:
    try:
        asyncio.run(supervisor.run())
    except BaseExceptionGroup as errors:
        found = cause(errors)
        if found is None:
            raise
        raise found from None


def surroundings() -> Surroundings:
    """Return the surroundings: Redis is REDIS_URL, or the system's server with WEIR_SYSTEM_REDIS, or else the bundled
    one.
    """
    command: tuple[str, ...] = ()
    if env.text("REDIS_URL"):
        redis_server.wait_until_ready(settings.REDIS_URL, timeout_s=2)
    else:
        server = redis_server.find_server(prefer_system=env.flag("WEIR_SYSTEM_REDIS"))
        command = tuple(redis_server.arguments(server, settings.DATA_DIR / "run" / "redis.sock"))
    return Surroundings(sys.executable, settings.REDIS_URL, command, str(settings.INDEX_SOCKET))


def environment(around: Surroundings) -> dict[str, str]:
    """Return the environment of every child: this process's own, with the paths made explicit."""
    return os.environ | {
        "REDIS_URL": around.redis_url,
        "WEIR_DATA_DIR": str(settings.DATA_DIR),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONUNBUFFERED": "1",
    }
