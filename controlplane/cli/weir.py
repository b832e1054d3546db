#!/usr/bin/env python3
"""Weir from a shell or a pipeline. One file for Python 3.9 or newer; it needs nothing else.

WEIR_URL names the control plane (https://weir.example), WEIR_TOKEN holds an API token.
Exit status: 0 pass, 1 fail, 2 inconclusive, 3 error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = "unknown"  # set by the control plane that serves this file
PASS, FAIL, INCONCLUSIVE, ERROR = 0, 1, 2, 3
VERDICTS = {"pass": PASS, "none": PASS, "fail": FAIL, "inconclusive": INCONCLUSIVE}
ENDED = ("done", "failed", "cancelled")
ANSWER_S = 60.0  # longest wait for one answer
AWAY_S = 120.0  # for how long a control plane that does not answer is asked again
EVERY_S = 1.0  # between two looks at something that runs
DAY_S = 86_400.0
SCALES = ("log", "linear")  # of a bound of `weir tune`


class Failed(Exception):
    """The message is for people."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status  # of the answer; 0: there was none
        super().__init__(message)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Api:
    """The REST API of one control plane."""

    def __init__(self, url: str, token: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise Failed(f"WEIR_URL is {url!r}: it must begin with http:// or https://")
        if not token:
            raise Failed("WEIR_TOKEN is empty: make an API token on the page Tokens")
        self._url, self._token = url.rstrip("/"), token
        self._open = urllib.request.build_opener(_NoRedirect).open

    def get(self, path: str) -> Any:
        return self.call("GET", path)[0]

    def text(self, path: str) -> bytes:
        return self._tried("GET", path, None, {})[0]

    def call(self, method: str, path: str, body: Any = None, etag: str = "") -> tuple[Any, str]:
        """(value of the answer, its ETag). A call that changes something carries a key, so it is done once."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        if etag:
            headers["If-Match"] = etag
        data = json.dumps(body).encode() if body is not None else None
        raw, found = self._tried(method, path, data, headers)
        return (json.loads(raw) if raw else None), found

    def put(self, path: str, data: bytes, content_type: str) -> Any:
        raw, _ = self._tried("PUT", path, data, {"Content-Type": content_type})
        return json.loads(raw)

    def _tried(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[bytes, str]:
        """Ask again while the control plane is away."""
        end, pause = time.monotonic() + AWAY_S, 0.5
        while True:
            try:
                return self._asked(method, path, data, headers)
            except Failed as failed:
                if failed.status not in (0, 429, 502, 503, 504) or time.monotonic() + pause > end:
                    raise
                print(f"weir: {failed}; trying again in {pause:g} s", file=sys.stderr)
            time.sleep(pause)
            pause = min(2 * pause, 10.0)

    def _asked(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[bytes, str]:
        own = {"Authorization": f"Bearer {self._token}", "User-Agent": f"weir/{VERSION}", "Accept": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - http or https: __init__
            f"{self._url}/api/v1{path}", data, {**own, **headers}, method=method
        )
        try:
            with self._open(request, timeout=ANSWER_S) as answer:
                return answer.read(), answer.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            raise Failed(_problem(method, path, error.code, error.read()), error.code) from None
        except (OSError, ValueError) as error:
            raise Failed(f"{self._url} does not answer: {getattr(error, 'reason', error)}") from None


def _problem(method: str, path: str, status: int, raw: bytes) -> str:
    """An answer in words: RFC 9457, with a line for each field."""
    try:
        problem = json.loads(raw)
        lines = [f"{status} {problem['title']}" + (f": {problem['detail']}" if problem.get("detail") else "")]
    except (ValueError, KeyError, TypeError):
        return f"{method} {path}: {status}, which is no answer of Weir's API"
    lines += [f"  {one['path'] or '(all)'}: {_short(one.get('value'))}: {one['message']}" for one in problem["errors"]]
    lines += [
        f"  {one['path']}: {_short(one.get('base'))}, now {_short(one.get('theirs'))}, here {_short(one.get('mine'))}"
        for one in problem.get("conflicts", [])
    ]
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:79] + "…"


# Files


def read_json(name: str) -> Any:
    text = sys.stdin.read() if name == "-" else _text_of(name)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failed(f"{name}: not JSON: {error}") from None


def _text_of(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def write(name: str, data: bytes) -> None:
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise Failed(f"{name}: {error.strerror or error}") from None


@dataclass(frozen=True)
class VersionAnswer:
    """A version of a policy, as REST answers it."""

    policy: str
    number: int
    document: Any
    by: str = ""  # who published it, and why

    @classmethod
    def of(cls, found: Any) -> VersionAnswer:
        by = f"v{found['number']} by {found['actor']['name']} ({found['reason']})"
        return cls(found["policy"], found["number"], found["document"], by)

    def as_file(self) -> str:
        kept = {"policy": self.policy, "version": self.number, "document": self.document}
        return json.dumps(kept, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class DraftAnswer:
    document: Any
    updated_by: str


@dataclass(frozen=True)
class PolicyAnswer:
    name: str
    live: VersionAnswer
    draft: DraftAnswer | None

    @classmethod
    def of(cls, api: Api, name: str) -> PolicyAnswer:
        found = api.get(f"/policies/{_quoted(name)}")
        held = found["draft"]
        draft = None if held is None else DraftAnswer(held["document"], held["updated_by"])
        return cls(found["name"], VersionAnswer.of(found["live"]), draft)

    @property
    def path(self) -> str:
        return f"/policies/{_quoted(self.name)}"


@dataclass(frozen=True)
class PolicyFile:
    version: VersionAnswer  # that it was made from, with the file's document
    whole: dict[str, Any]  # as read: what else it says stays when it is written

    @classmethod
    def read(cls, name: str) -> PolicyFile:
        found = read_json(name)
        if not isinstance(found, dict) or not isinstance(found.get("policy"), str) or "document" not in found:
            raise Failed(
                f'{name}: a policy file is {{"policy": NAME, "version": N, "document": {{…}}}}: weir policy export'
            )
        if not isinstance(found.get("version"), int):
            raise Failed(
                f"{name}: version: {_short(found.get('version'))}: the number of the version that it was made from"
            )
        return cls(VersionAnswer(found["policy"], found["version"], found["document"]), found)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted path, old value, new value) of each field that differs; None where there is none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def changes_as_text(changes: Iterator[tuple[str, Any, Any]]) -> str:
    return "\n".join(f"  {path}: {_short(old)} → {_short(new)}" for path, old, new in changes)


# Experiments


def run_experiment(api: Api, options: argparse.Namespace) -> int:
    made, _ = api.call("POST", "/experiments", read_json(options.file))
    print(f"experiment {made['id']}: {options.url}/experiments/{made['id']}", flush=True)
    if not options.wait:
        return PASS
    with cancelled_with_me(api, f"/experiments/{made['id']}/cancel"):
        ended = follow(api, f"/experiments/{made['id']}", options.timeout, _experiment_line)
    return _verdict(api, ended, options)


def wait_experiment(api: Api, options: argparse.Namespace) -> int:
    return _verdict(api, follow(api, f"/experiments/{options.number}", options.timeout, _experiment_line), options)


def _experiment_line(one: dict[str, Any]) -> str:
    done = one["progress"]
    behind = done.get("queued_behind")
    if behind is not None:
        return f"queued behind {behind} experiment{'' if behind == 1 else 's'}" if behind else "queued, next to run"
    left = f", about {done['eta_s']:.0f} s left" if done["eta_s"] is not None else ""
    return f"{one['status']}: {done['runs_done']} of {done['runs']} runs{left}"


def _verdict(api: Api, one: dict[str, Any], options: argparse.Namespace) -> int:
    path = f"/experiments/{one['id']}"
    for file, kind in ((options.junit, "junit.xml"), (options.report, "report.md"), (options.results, "results")):
        if file:
            write(file, api.text(f"{path}/{kind}"))
    if one["status"] != "done":
        raise Failed(f"experiment {one['id']} {one['status']}: {one['cause']}")
    results = api.get(f"{path}/results")
    for found in results["expectations"]:
        print("  " + _expectation_line(found))
    for warning in results["warnings"]:
        print(f"  warning: {warning}")
    print(f"{one['verdict'] if one['verdict'] != 'none' else 'done: nothing was expected'}")
    return VERDICTS[one["verdict"]]


def _expectation_line(one: dict[str, Any]) -> str:
    value = "unknown" if one["value"] is None else f"{one['value']:.4g}"
    if one["relative_to"] and one["ratio"] is not None:
        value = f"{one['ratio']:.3f} × {one['relative_to']}"
    interval = "" if one["low"] is None or one["high"] is None else f" ({one['low']:.4g} to {one['high']:.4g})"
    needed = f"; {one['needed_n']:,} requests would decide it" if one["needed_n"] else ""
    return f"{one['verdict']}: {one['arm']}, {one['class']}, {one['metric']} {one['limits']}: {value}{interval}{needed}"


def follow(api: Api, path: str, timeout_s: float, line: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Wait until it has ended; prints a line at each change."""
    end, shown = time.monotonic() + timeout_s, ""
    while True:
        one: dict[str, Any] = api.get(path)
        if line(one) != shown:
            shown = line(one)
            print(shown, flush=True)
        if one["status"] in ENDED:
            return one
        if time.monotonic() >= end:
            raise Failed(f"not ended after {timeout_s:g} s; it goes on")
        time.sleep(EVERY_S)


@contextlib.contextmanager
def cancelled_with_me(api: Api, path: str) -> Iterator[None]:
    """A pipeline that is stopped leaves nothing that runs."""
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        api.call("POST", path)
        raise Failed("stopped, and cancelled") from None
    finally:
        signal.signal(signal.SIGTERM, before)


# Policies


def export_policy(api: Api, options: argparse.Namespace) -> int:
    text = PolicyAnswer.of(api, options.name).live.as_file()
    if options.output:
        write(options.output, text.encode())
    else:
        print(text, end="")
    return PASS


def diff_policy(api: Api, options: argparse.Namespace) -> int:
    file = PolicyFile.read(options.file).version
    live = PolicyAnswer.of(api, file.policy).live
    changes = changes_as_text(differences(live.document, file.document))
    print(f"{file.policy} v{live.number}: " + (f"the file differs\n{changes}" if changes else "as in the file"))
    return FAIL if changes else PASS


def apply_policy(api: Api, options: argparse.Namespace) -> int:
    """Publish the document of a file, once; refused when another version went live since the file was made."""
    file = PolicyFile.read(options.file)
    name, document = file.version.policy, file.version.document
    policy = PolicyAnswer.of(api, name)
    live = policy.live
    changes = changes_as_text(differences(live.document, document))
    if not changes:
        print(f"{name}: v{live.number} is live with this document; nothing to do")
        return PASS
    _check_base(api, policy, file.version)
    print(f"{name}: v{live.number} → the file\n{changes}")
    if options.dry_run:
        return PASS
    body = {"reason": options.reason}
    if options.deliver:
        made = _send(api, policy, document, "deliver", {**body, **_plan(options.plan)})
        print(f"{name}: delivery {made['id']} is {made['state']}: {options.url}/deliveries/{made['id']}")
        return PASS
    made = _send(api, policy, document, "publish", body)
    print(f"{name}: v{made['version']['number']} is live: {made['summary']}")
    if options.file != "-":
        kept = {**file.whole, "version": made["version"]["number"]}
        write(options.file, (json.dumps(kept, indent=2) + "\n").encode())
    return PASS


def _plan(name: str | None) -> dict[str, Any]:
    return {"plan": read_json(name)} if name else {}


def _send(api: Api, policy: PolicyAnswer, document: Any, verb: str, body: dict[str, Any]) -> Any:
    """Publish or deliver the document; a draft that was opened for it does not outlive a refusal."""
    etag = _draft(api, policy, document)
    try:
        return api.call("POST", f"{policy.path}/draft/{verb}", body, etag)[0]
    except Failed as failed:
        if policy.draft is None and failed.status in (400, 403, 409, 412, 422):
            with contextlib.suppress(Failed):
                api.call("DELETE", f"{policy.path}/draft", etag=etag)
        raise


def _check_base(api: Api, policy: PolicyAnswer, file: VersionAnswer) -> None:
    if file.number == policy.live.number:
        return
    base = api.get(f"{policy.path}/versions/{file.number}")
    moved = changes_as_text(differences(base["document"], policy.live.document))
    if moved:
        raise Failed(
            f"the file was made from v{file.number}, and {policy.live.by} is live since:\n{moved}\nexport it again"
        )


def _draft(api: Api, policy: PolicyAnswer, document: Any) -> str:
    """The ETag of a draft with this document. Failed when another one is open."""
    path, held = f"{policy.path}/draft", policy.draft
    if held is not None and held.document not in (document, policy.live.document):
        raise Failed(f"{held.updated_by} has a draft of {policy.name} open: publish or discard it first")
    draft, etag = api.call("POST", path)
    try:
        return api.call("PATCH", path, {"document": document, "based_on": policy.live.number}, etag)[1]
    except Failed:
        if held is None:
            api.call("DELETE", path, etag=draft["etag"])
        raise


def preview_policy(api: Api, options: argparse.Namespace) -> int:
    """Simulate the document of a file beside the live version, on recorded traffic."""
    file = PolicyFile.read(options.file).version
    policy = PolicyAnswer.of(api, file.policy)
    path, etag = policy.path, _draft(api, policy, file.document)
    try:
        asked = {"pool": options.pool, "trace": options.trace}
        made, _ = api.call("POST", f"{path}/draft/preview", asked, etag)
        with cancelled_with_me(api, f"{path}/previews/{made['id']}/cancel"):
            one = follow(api, f"{path}/previews/{made['id']}", options.timeout, _preview_line)
    finally:
        if policy.draft is None:
            api.call("DELETE", f"{path}/draft", etag=etag)
    if one["status"] != "done":
        raise Failed(f"preview {one['id']} {one['status']}: {one['cause']}")
    _print_preview(one)
    return PASS


def _preview_line(one: dict[str, Any]) -> str:
    return f"{one['status']}: {one['done']:,} of {one['total']:,} requests"


def _print_preview(one: dict[str, Any]) -> None:
    print(f"simulated on {one['trace']['name']} ({one['trace']['played']:,} requests), {one['twin']['about']}")
    for caution in one["trust"]:
        print(f"  caution: {caution['text']}")
    changed = one["result"]["changed"]
    print(f"  {changed['decisions']:,} of {changed['of']:,} decisions change")
    for name, found in one["result"]["classes"].items():
        for metric in found["metrics"]:
            if metric["relative"] is not None:
                print(f"  {name}, {metric['metric']}: {100 * metric['relative']:+.1f} %: {metric['verdict']}")


def tune_policy(api: Api, options: argparse.Namespace) -> int:
    """Search the parameters of the live version in the twin; with --draft, open a draft with a winner."""
    asked = {"pool": options.pool, "trace": options.trace, "trials": options.trials, "workers": options.workers,
             "seed": options.seed, "parameters": [_range(text) for text in options.parameter],
             "objectives": options.objective, "time_limit_s": options.time, "held_out": options.held_out}  # fmt: skip
    path = f"/policies/{_quoted(options.name)}/tunings"
    made, _ = api.call("POST", path, {name: value for name, value in asked.items() if value is not None})
    print(f"tuning {made['id']}: {options.url}/policies/{options.name}/tunings/{made['id']}/", flush=True)
    with cancelled_with_me(api, f"{path}/{made['id']}/cancel"):
        one = follow(api, f"{path}/{made['id']}", options.timeout, _tuning_line)
    if one["status"] != "done":
        raise Failed(f"tuning {one['id']} {one['status']}: {one['cause']}")
    _print_tuning(one)
    if options.draft:
        _draft_of(api, path, one, options)
    return PASS


def _range(text: str) -> dict[str, Any]:
    """PATH, PATH=LOW:HIGH, PATH=LOW:HIGH:STEP, or PATH=LOW:HIGH:log."""
    path, _, bounds = text.partition("=")
    given = dict(zip(("low", "high", "step"), bounds.split(":"), strict=False))
    scale = {"log": given.pop("step") == "log"} if given.get("step") in SCALES else {}
    try:
        if bounds.count(":") > 2:
            raise ValueError
        return {"path": path, **{name: float(value) for name, value in given.items() if value}, **scale}
    except ValueError:
        raise Failed(f"--bound {text}: PATH or PATH=LOW:HIGH[:STEP|:log|:linear] with numbers") from None


def _tuning_line(one: dict[str, Any]) -> str:
    return f"{one['status']}: {one['done']:,} of {one['total']:,} trials"


def _print_tuning(one: dict[str, Any]) -> None:
    print(f"simulated on {one['trace']['name']} ({one['trace']['played']:,} requests), {one['twin']['about']}")
    for winner in one["result"]["winners"]:
        best = f"trial {winner['trial']}, best in {', '.join(winner['reasons'])}"
        print(f"{best}, on {winner['check']['n']:,} held-out requests:")
        for row in winner["effect"]:
            print("  " + _goal_line(row))
    for text in one["result"]["not_tested"]:
        print(f"  not tested: {text}")


def _goal_line(row: dict[str, Any]) -> str:
    def text(name: str) -> str:
        return "unknown" if row[name] is None else f"{row[name]:.4g}"

    interval = f" ({text('low')} to {text('high')}, n = {row['n']:,})"
    return f"{row['metric']}: {text('live')} → {text('tuned')}, {text('difference')}{interval}: {row['verdict']}"


def _draft_of(api: Api, path: str, one: dict[str, Any], options: argparse.Namespace) -> None:
    trial = next((each["trial"] for each in one["result"]["winners"] if options.draft in each["reasons"]), None)
    if trial is None:
        raise Failed(f"tuning {one['id']} has no winner to open as a draft")
    api.call("POST", f"{path}/{one['id']}/draft", {"trial": trial})
    print(f"trial {trial} is the draft of {options.name}, not published: {options.url}/policies/{options.name}/draft")


# Fleet and receipts


def apply_fleet(api: Api, options: argparse.Namespace) -> int:
    content = "application/json" if options.file.endswith(".json") else "application/yaml"
    text = sys.stdin.read() if options.file == "-" else _text_of(options.file)
    flags = {"dry_run": options.dry_run, "prune": options.prune}
    query = urllib.parse.urlencode({name: str(value).lower() if value in (True, False) else value
                                    for name, value in flags.items()})  # fmt: skip
    made = api.put(f"/fleet?{query}", text.encode(), content)
    for warning in made["warnings"]:
        print(f"warning: {warning}")
    for change in made["changes"]:
        print(_change_line(change))
    print(f"{len(made['changes'])} changes" + (", none made: a dry run" if made["dry_run"] else ""))
    return PASS


def _change_line(change: dict[str, Any]) -> str:
    fields = changes_as_text((one["path"], one["old"], one["new"]) for one in change["fields"])
    return f"{change['kind']} {change['pool']}: {change['effect']}" + (f"\n{fields}" if fields else "")


def explain(api: Api, options: argparse.Namespace) -> int:
    query = urllib.parse.urlencode({"policy": options.policy, "version": options.version})
    one = api.get(f"/receipts/{_quoted(options.request)}/explain?{query}")
    for title, key in (("recorded", "recorded"), (f"{one['policy'] or 'default'} v{one['version']}", "recomputed")):
        found = one[key]
        print(
            f"{title}: {found['instance'] or 'no instance'}, class {found['class']}, "
            f"by {found['rule']} of {found['strategy']}"
        )
        for reason in found["reasons"]:
            print(f"  {reason}")
    print("the same decision" if one["same"] else f"differs in {', '.join(one['changed'])}")
    return PASS if one["same"] else FAIL


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


# Command line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(prog="weir", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"weir {VERSION}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    experiment = commands.add_parser("experiment", help="run experiments").add_subparsers(required=True, metavar="VERB")
    run = _verb(experiment, "run", run_experiment, "start the experiment of a file (the body of POST /experiments)")
    run.add_argument("file", help="JSON; -: standard input")
    run.add_argument("--wait", action="store_true", help="until it ends; the exit status is its verdict")
    wait = _verb(experiment, "wait", wait_experiment, "wait for an experiment; the exit status is its verdict")
    wait.add_argument("number", type=int)
    for one in (run, wait):
        one.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")
        one.add_argument("--junit", metavar="FILE", help="write the JUnit report")
        one.add_argument("--report", metavar="FILE", help="write the report, Markdown")
        one.add_argument("--results", metavar="FILE", help="write the results, JSON")
    policy = commands.add_parser("policy", help="policies kept in files").add_subparsers(required=True, metavar="VERB")
    export = _verb(policy, "export", export_policy, "write the live version as a file")
    export.add_argument("name")
    export.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    _verb(policy, "diff", diff_policy, "compare a file with the live version; status 1 when they differ").add_argument(
        "file"
    )
    apply = _verb(policy, "apply", apply_policy, "publish a file, unless another version went live since it was made")
    apply.add_argument("file", help="as policy export writes it; the number of the new version is written to it")
    apply.add_argument("--reason", default="applied from a file", help="kept with the version")
    apply.add_argument("--dry-run", action="store_true", help="only say what would change")
    apply.add_argument("--deliver", action="store_true", help="propose it as a delivery instead of publishing it")
    apply.add_argument("--plan", metavar="FILE", help="of the delivery, JSON; default: the usual plan")
    fleet = commands.add_parser("fleet", help="the fleet document").add_subparsers(required=True, metavar="VERB")
    put = _verb(fleet, "apply", apply_fleet, "make a fleet document the desired state")
    put.add_argument("file", help="YAML, or JSON (*.json)")
    put.add_argument("--dry-run", action="store_true", help="only say what would change")
    put.add_argument("--prune", action="store_true", help="remove the pools that it does not name")
    put.add_argument("--reason", default="applied from a file", help="kept in the audit log")
    preview = _verb(commands, "preview", preview_policy, "simulate a policy file beside the live version")
    preview.add_argument("file")
    preview.add_argument("--pool", default="", help="default: the one with most recorded requests")
    preview.add_argument("--trace", default="", help="default: the pool's recorded traffic")
    preview.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")
    tune = _verb(commands, "tune", tune_policy, "search a policy's parameters in the twin; publishes nothing")
    tune.add_argument("name")
    tune.add_argument("--pool", default="", help="default: the one with most recorded requests")
    tune.add_argument("--trace", default="", help="default: the pool's recorded traffic")
    tune.add_argument("--trials", type=int, help="points to simulate, default 60")
    tune.add_argument("--workers", type=int, help="processes that simulate, default 2")
    tune.add_argument("--time", type=int, metavar="S", help="longest search, default none; the check comes after it")
    tune.add_argument("--held-out", type=float, metavar="SHARE", help="of the requests, check the winners, default 0.3")
    tune.add_argument(
        "--objective", action="append", choices=("ttft", "tpot", "goodput"), help="repeat it for more; default: all"
    )
    tune.add_argument("--seed", type=int, help="of the search and of the twin, default 1")
    tune.add_argument(
        "--parameter", "--bound", action="append", default=[], metavar="PATH[=LOW:HIGH[:STEP|:log|:linear]]",
        help="search this one; repeat it for more; default: those by which the strategy decides",
    )  # fmt: skip
    tune.add_argument(
        "--draft", choices=("ttft", "tpot", "goodput", "balanced"), help="open a draft with the winner in this"
    )
    tune.add_argument("--timeout", type=float, default=DAY_S, metavar="S", help="longest wait, default a day")
    explained = _verb(
        commands, "explain", explain, "say why a request went where it did; status 1 when it would not again"
    )
    explained.add_argument("request", help="the x-request-id of its answer")
    explained.add_argument("--policy", default="", help="decide with this policy instead")
    explained.add_argument("--version", type=int, default=0, help="of that policy, default the live one")
    return top


def _verb(commands: Any, name: str, run: Callable[[Api, argparse.Namespace], int], text: str) -> Any:
    made = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=run)
    return made


def main() -> int:
    options = parser().parse_args()
    options.url = os.environ.get("WEIR_URL", "").rstrip("/") or "http://127.0.0.1:8000"
    try:
        status: int = options.run(Api(options.url, os.environ.get("WEIR_TOKEN", "").strip()), options)
    except Failed as failed:
        print(f"weir: {failed}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        return ERROR
    return status


if __name__ == "__main__":
    sys.exit(main())
