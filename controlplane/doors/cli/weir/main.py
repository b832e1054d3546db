"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import VERSION
from . import __doc__ as about
from .api import ERROR, Api, Failed
from .deliveries import ACTIONS, act, deliver, delivery_status, wait_delivery
from .fleet import apply_fleet, discover_engines
from .policies import apply_models, apply_policy, diff_policy, export_policy, get_models, roll_back_models
from .profiles import make_profile
from .receipts import explain
from .simulations import preview_policy, run_experiment, tune_policy, wait_experiment
from .use import cancel_batch, delete_budget, get_batch, list_batches, list_budgets, set_budget
from .waiting import DAY_S


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: {message}\n")


def _reason(otherwise: str) -> str:
    """Return the first line of WEIR_REASON. If commit messages were passed on a command line, they could add arguments
    of their own."""
    return os.environ.get("WEIR_REASON", "").strip().partition("\n")[0] or otherwise


def parser(epilog: str = "") -> argparse.ArgumentParser:
    top = _Parser(prog="weir", description=about, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"weir {VERSION}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for add in (
        *(_add_experiment, _add_policy, _add_deliver, _add_fleet, _add_models, _add_preview, _add_tune),
        *(_add_profile, _add_use, _add_explain),
    ):
        add(commands)
    return top


def _add_experiment(commands: Any) -> None:
    experiment = commands.add_parser("experiment", help="run experiments").add_subparsers(required=True, metavar="VERB")
    run = _verb(experiment, "run", run_experiment, "start the experiment in a file (the body of POST /experiments)")
    run.add_argument("file", help="JSON; -: standard input")
    run.add_argument("--wait", action="store_true", help="wait until it ends; the exit status is its verdict")
    wait = _verb(experiment, "wait", wait_experiment, "wait for an experiment; the exit status is its verdict")
    wait.add_argument("number", type=int)
    for one in (run, wait):
        one.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")
        one.add_argument("--junit", metavar="FILE", help="write the JUnit report")
        one.add_argument("--report", metavar="FILE", help="write the report, Markdown")
        one.add_argument("--results", metavar="FILE", help="write the results, JSON")


def _add_policy(commands: Any) -> None:
    policy = commands.add_parser("policy", help="policies as files").add_subparsers(required=True, metavar="VERB")
    export = _verb(policy, "export", export_policy, "write the live version as a file")
    export.add_argument("name")
    export.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    _verb(policy, "diff", diff_policy, "compare a file with the live version; status 1 if they differ").add_argument(
        "file"
    )
    apply = _verb(policy, "apply", apply_policy, "publish a file, unless another version went live meanwhile")
    apply.add_argument("file", help="file from policy export; the new version's number is written to it")
    apply.add_argument("--reason", default=_reason("applied from a file"), help="kept with the version")
    apply.add_argument("--dry-run", action="store_true", help="let the server check and show what would change")
    apply.add_argument("--deliver", action="store_true", help="propose it as a delivery; weir deliver also starts it")
    apply.add_argument("--emergency", default="", metavar="WHY", help="bypass the rules; needs the scope admin")
    apply.add_argument("--plan", metavar="FILE", help="delivery plan, JSON; default: the usual plan")


def _add_fleet(commands: Any) -> None:
    fleet = commands.add_parser("fleet", help="the fleet document").add_subparsers(required=True, metavar="VERB")
    put = _verb(fleet, "apply", apply_fleet, "make a fleet document the desired state")
    put.add_argument("file", help="YAML, or JSON (*.json)")
    put.add_argument("--dry-run", action="store_true", help="only show what would change")
    put.add_argument("--prune", action="store_true", help="remove pools that the document does not name")
    put.add_argument("--emergency", default="", metavar="WHY", help="bypass the rules; needs the scope admin")
    put.add_argument("--reason", default=_reason("applied from a file"), help="kept in the audit log")
    look = _verb(fleet, "discover", discover_engines, "list engines that run elsewhere; changes nothing")
    place = look.add_mutually_exclusive_group(required=True)
    place.add_argument("--urls", nargs="+", metavar="URL")
    place.add_argument("--dns", metavar="NAME", help="name:port, or _service._tcp.name")
    place.add_argument("--file", metavar="PATH", help="Prometheus' file_sd, on the server's host")
    place.add_argument("--kubernetes", nargs=3, metavar=("NAMESPACE", "SELECTOR", "PORT"))
    look.add_argument("--engine-key", metavar="WHERE", help="env:NAME or file:/PATH, on the server's host")
    look.add_argument(
        "--tls-authorities", metavar="WHERE", help="CA of https:// engines: env:NAME or file:/PATH, there"
    )


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="the document Models").add_subparsers(required=True, metavar="VERB")
    got = _verb(models, "get", get_models, "print the live document as YAML")
    got.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    given = _verb(models, "apply", apply_models, "publish a document")
    given.add_argument("file", help="YAML, or JSON (*.json); -: standard input")
    given.add_argument("--reason", default=_reason("applied from a file"), help="kept with the version")
    given.add_argument("--based-on", type=int, metavar="N", help="version that the file is based on")
    given.add_argument("--dry-run", action="store_true", help="let the server check it without changing anything")
    given.add_argument("--emergency", default="", metavar="WHY", help="bypass the rules; needs the scope admin")
    back = _verb(models, "rollback", roll_back_models, "publish an earlier version's document again")
    back.add_argument("to", type=int, help="its number")
    back.add_argument("--reason", default=_reason("rolled back by a command"), help="kept with the version")


def _add_preview(commands: Any) -> None:
    preview = _verb(commands, "preview", preview_policy, "simulate a policy file against the live version")
    preview.add_argument("file")
    preview.add_argument("--pool", default="", help="default: the one with most recorded requests")
    preview.add_argument("--trace", default="", help="default: the pool's recorded traffic")
    preview.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")


def _add_tune(commands: Any) -> None:
    tune = _verb(commands, "tune", tune_policy, "search a policy's parameters in the twin; publishes nothing")
    tune.add_argument("name")
    tune.add_argument("--pool", default="", help="default: the one with most recorded requests")
    tune.add_argument("--trace", default="", help="default: the pool's recorded traffic")
    tune.add_argument("--trials", type=int, help="number of points to simulate; default: 60")
    tune.add_argument("--workers", type=int, help="number of processes; default: 2")
    tune.add_argument("--time", type=int, metavar="S", help="time limit of the search, before the check; default: none")
    tune.add_argument("--held-out", type=float, metavar="SHARE", help="share that checks the winners; default: 0.3")
    tune.add_argument(
        "--objective", action="append", choices=("ttft", "tpot", "goodput"), help="may be repeated; default: all"
    )
    tune.add_argument("--seed", type=int, help="seed of the search and of the twin; default: 1")
    tune.add_argument(
        "--parameter", "--bound", action="append", default=[], metavar="PATH[=LOW:HIGH[:STEP|:log|:linear]]",
        help="parameter to search; may be repeated; default: those by which the strategy decides",
    )  # fmt: skip
    tune.add_argument(
        "--draft", choices=("ttft", "tpot", "goodput", "balanced"), help="open a draft with the winner by this"
    )
    tune.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")


def _add_explain(commands: Any) -> None:
    explained = _verb(
        commands, "explain", explain, "explain where a request went; status 1 if it would now go elsewhere"
    )
    explained.add_argument("request", help="x-request-id of its answer")
    explained.add_argument("--policy", default="", help="policy to decide with instead")
    explained.add_argument("--version", type=int, default=0, help="version of that policy; default: the live one")


def _add_profile(commands: Any) -> None:
    made = _verb(
        commands, "profile", make_profile, "create the profile of a model on a GPU, for the twin and simulated pools"
    )
    made.add_argument("model", help="name on a hub, such as openai/gpt-oss-120b")
    made.add_argument("--gpu", required=True, help="GPU, such as h200_sxm")
    made.add_argument("--tp", type=int, default=1, help="tensor-parallel size; default: 1")
    made.add_argument("--dp", type=int, default=1, help="data-parallel ranks that share the experts; default: 1")
    made.add_argument("--ep", type=int, default=1, help="tp x dp: distribute whole experts; default: 1, slice each")
    made.add_argument("--quantization", default="", help="bf16, fp8, fp8_block, nvfp4 or int4; default: as published")
    made.add_argument("--kv-dtype", default="", help="bf16 or fp8; default: as published")
    made.add_argument("--config", metavar="FILE", help="config.json of a model that the server's library does not know")
    made.add_argument("--json", action="store_true", help="print only the profile, as the option profile takes it")
    made.add_argument("-o", "--output", metavar="FILE", help="write the profile")


def _add_use(commands: Any) -> None:
    text = "limit what API keys and pools may spend"
    budget = commands.add_parser("budget", help=text).add_subparsers(required=True, metavar="VERB")
    _verb(budget, "list", list_budgets, "list every budget and what has been spent of it")
    put = _verb(budget, "set", set_budget, "create a budget, or change the one with the same unit and period")
    gone = _verb(budget, "delete", delete_budget, "delete a budget")
    for one in (put, gone):
        owner = one.add_mutually_exclusive_group(required=True)
        owner.add_argument("--key", metavar="NAME", help="of the API key")
        owner.add_argument("--pool", metavar="NAME", help="pool whose whole traffic the budget covers")
        one.add_argument("--unit", choices=("tokens", "dollars", "requests"), required=True)
        pers = ("hour", "day", "week", "month", "ever")
        one.add_argument("--per", choices=pers, required=True, help="of the calendar")
    put.add_argument("--limit", type=float, required=True)
    put.add_argument("--warn-at", type=float, default=0.8, metavar="SHARE", help="share that warns; default: 0.8")
    put.add_argument("--warn-only", action="store_true", help="only warn, never refuse")
    batch = commands.add_parser("batch", help="batches of all keys").add_subparsers(required=True, metavar="VERB")
    _verb(batch, "list", list_batches, "list the newest 1,000")
    _verb(batch, "cancel", cancel_batch, "cancel a batch; finished answers are kept").add_argument("name")
    got = _verb(batch, "get", get_batch, "write the answers of a batch")
    got.add_argument("name")
    got.add_argument("--errors", action="store_true", help="write the lines without an answer instead")
    got.add_argument("-o", "--output", metavar="FILE", help="default: standard output")


def _add_deliver(commands: Any) -> None:
    text = "deliver a policy file in steps; status 0 delivered, 1 ended, 2 needs a person or time"
    file = _verb(commands, "deliver", deliver, text)
    file.add_argument("file", help="file from policy export, or with --policy only a document; -: standard input")
    file.add_argument("--policy", default="", metavar="NAME", help="of a document alone")
    file.add_argument("--plan", metavar="FILE", help="JSON; default: the usual plan")
    file.add_argument("--pool", action="append", help="pool that the steps split; may be repeated; default: the plan's")
    file.add_argument("--at", default="", metavar="TIME", help="local start time: 2026-08-03T03:00")
    file.add_argument("--zone", default="UTC", help="time zone of --at; default: UTC")
    file.add_argument("--reason", default=_reason("delivered from a file"), help="kept with the version")
    file.add_argument("--again", default="", metavar="WHY", help="deliver a document again that ended undelivered")
    file.add_argument("--emergency", default="", metavar="WHY", help="bypass the rules; needs the scope admin")
    file.add_argument("--dry-run", action="store_true", help="let the server check it without changing anything")
    file.add_argument("--wait", action="store_true", help="wait for its approvals, and until it ends or needs a person")
    wait = _verb(commands, "deliver wait", wait_delivery, "wait for a delivery; same exit statuses as deliver")
    status = _verb(commands, "deliver status", delivery_status, "print a delivery; status 0 while it is in progress")
    status.add_argument("--json", action="store_true", help="as REST answers it")
    actions = {name: _verb(commands, f"deliver {name}", act, text) for name, text in ACTIONS.items()}
    for name, one in actions.items():
        one.set_defaults(action=name)
        one.add_argument("--reason", default=_reason(""), help="kept in the audit log")
    for one in (wait, status, *actions.values()):
        one.add_argument("id", nargs="?", type=int, help="id of the delivery, unless --policy is given")
        one.add_argument("--policy", default="", metavar="NAME", help="use the newest delivery of this policy")
    wait.set_defaults(reason=_reason(""))
    for one in (file, wait):
        one.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")
        one.add_argument(
            "--abort-on-exit", action="store_true", help="abort it on Ctrl-C or SIGTERM; else it continues"
        )
        one.add_argument("--results", metavar="FILE", help="write the ended delivery, JSON")


def joined(words: list[str]) -> list[str]:
    """Join `deliver abort` into one command, beside `deliver FILE`; write ./abort for a file with that name."""
    is_verb = len(words) > 1 and words[0] == "deliver" and words[1] in {"wait", "status", *ACTIONS}
    return [" ".join(words[:2]), *words[2:]] if is_verb else words


def _verb(commands: Any, name: str, run: Callable[[Api, argparse.Namespace], int], text: str) -> Any:
    made = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=run)
    return made


def main(epilog: str = "") -> int:
    options = parser(epilog).parse_args(joined(sys.argv[1:]))
    options.url = os.environ.get("WEIR_URL", "").rstrip("/") or "http://127.0.0.1:8000"
    try:
        status: int = options.run(Api(options.url, os.environ.get("WEIR_TOKEN", "").strip()), options)
    except Failed as failed:
        print(f"weir: {failed}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        return ERROR
    return status
