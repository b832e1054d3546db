"""Reads the instances of a standalone router, from an option or a file, and its policy file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from msgspec import ValidationError
from msgspec.structs import replace

from router.contract import models
from router.contract.connectors import CONNECTORS
from router.contract.net import engine_tls
from router.contract.net.addresses import is_base_path
from router.contract.net.engine_key import ALLOWED, OPTION, is_reference
from router.contract.net.engine_tls import EngineTls
from router.contract.redis.published import MOST_RANKS, DataParallel, KvFacts, PublishedInstance
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem
from router.contract.values.reading import read_value
from router.contract.values.secret_text import HIDDEN
from router.policy.schema import document
from router.policy.types import Role
from router.standalone.text import BadInput, structure, text

KEYS = ("id", "role", "connector", "events", "tokenizer", "ranks", "engine_key", "tls.NAME", "kv.NAME")
_ID = re.compile(r"[A-Za-z0-9._:\[\]-]{1,100}")
_PROBLEMS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class DocumentFile:
    path: str
    modified_at: float  # s, Unix
    sha256: str
    document: JsonObject


def listed(id: str, url: str, **facts: Any) -> PublishedInstance:
    """Return an instance that has not been polled yet."""
    reason = "it has not been asked yet"
    return PublishedInstance(id=id, epoch=1, url=url, state="loading", routable=False, reason=reason, **facts)


def read_instances(given: str, engine_key: str = "") -> list[PublishedInstance]:
    """Read `URL,URL` or `@FILE` with one `URL[;key=value]…` per line. `engine_key` applies to instances that name
    none."""
    instances = _listed(given)
    return [each if each.engine_key else replace(each, engine_key=engine_key) for each in instances]


def _listed(given: str) -> list[PublishedInstance]:
    if not given.startswith("@"):
        return _instances([("--instances", item) for item in given.split(",")])
    path = given[1:]
    lines = [line.partition("#")[0] for line in text("--instances", path).splitlines()]
    return _instances([(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()], path)


def read_policy(path: Path) -> DocumentFile:
    made = structure("--policy", path)
    if isinstance(made, dict) and "rollout" in made:
        why = "a router alone has no deliveries: one version serves all requests; give the policy document only"
        raise BadInput(f"--policy {path}", f"rollout: {why}")
    try:
        document.parse(made)
    except InvalidInput as error:
        raise BadInput(f"--policy {path}", _shown(error.problems)) from None
    return DocumentFile(str(path), path.stat().st_mtime, document.sha256(made), made)


def read_models(path: Path, pool: str) -> DocumentFile:
    """Read the document Models. `pool` is this router's only pool."""
    made = structure("--models", path)
    try:
        read = models.parse(made)
        errors = [
            Problem(f"{where}.pool", target.pool, "there is no such pool", f"{pool}, the only one of this router")
            for where, _, target in models.placed(read)
            if target.pool != pool
        ]
        if errors:
            raise InvalidInput(problems=errors)
    except InvalidInput as error:
        raise BadInput(f"--models {path}", _shown(error.problems)) from None
    document = models.dump(read)
    return DocumentFile(str(path), path.stat().st_mtime, models.sha256(document), document)


def _shown(errors: Sequence[Problem]) -> str:
    """Return the first problems in one line."""
    more = len(errors) - _PROBLEMS_SHOWN
    shown = "; ".join(f"{problem.path or 'document'}: {problem.text}" for problem in errors[:_PROBLEMS_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def _instances(items: list[tuple[str, str]], path: str = "") -> list[PublishedInstance]:
    if not items:
        raise BadInput(f"--instances @{path}", "it names no instance; write one URL per line")
    found: dict[str, PublishedInstance] = {}
    urls: set[str] = set()
    for where, item in items:
        instance = _instance(where, item.strip())
        if instance.id in found or instance.url in urls:
            raise BadInput(where, f"{instance.url} is there twice ({instance.id})")
        found[instance.id] = instance
        urls.add(instance.url)
    return list(found.values())


def _instance(where: str, item: str) -> PublishedInstance:
    url, *pairs = (pair.strip() for pair in item.split(";"))
    place = _place(where, url)
    given: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key in given or not value:
            raise BadInput(where, Problem(key, pair, "given twice" if key in given else "no value", "key=value, once"))
        given[key] = value
    name = given.pop("id", place)
    if not _ID.fullmatch(name):
        raise BadInput(where, Problem("id", name, "not a name", "1 to 100 of A-Z a-z 0-9 . _ : -"))
    unknown = next((key for key in given if key not in KEYS and not key.startswith(("kv.", "tls."))), None)
    if unknown is not None:
        raise BadInput(where, Problem(unknown, given[unknown], "unknown key", ", ".join(KEYS)))
    return listed(
        name,
        url.rstrip("/"),
        role=_one_of(where, given, "role", get_args(Role), "both"),
        connector=_one_of(where, given, "connector", tuple(CONNECTORS), ""),
        kv=_kv(where, _below("kv.", given)),
        events=given.get("events", ""),
        tokenizer=given.get("tokenizer", ""),
        dp=DataParallel(_ranks(where, given.get("ranks", "1"))),
        engine_key=key_reference(where, given.get("engine_key", "")),
        tls=_tls(where, url, _below("tls.", given)),
    )


def _below(prefix: str, given: dict[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}


def _tls(where: str, url: str, given: dict[str, str]) -> EngineTls:
    """Return the TLS settings. The BadInput that it raises omits the value, which may be a key itself."""
    if not engine_tls.is_allowed(given):
        raise BadInput(where, Problem(engine_tls.OPTION, HIDDEN, "not a reference to certificates", engine_tls.ALLOWED))
    if given and not url.startswith("https://"):
        raise BadInput(where, Problem("url", url, "would be asked without TLS, and tls is given", "https://HOST:PORT"))
    return engine_tls.engine_tls(given)


def key_reference(where: str, given: str) -> str:
    """Return the key reference. The BadInput that it raises omits the value, which may be the key itself."""
    if given and not is_reference(given):
        raise BadInput(where, Problem(OPTION, HIDDEN, "not a reference to a key", ALLOWED))
    return given


def _ranks(where: str, given: str) -> int:
    if not given.isdecimal() or len(given) > 4 or not 1 <= int(given) <= MOST_RANKS:
        raise BadInput(where, Problem("ranks", given, "not a number of ranks", f"1 to {MOST_RANKS}"))
    return int(given)


def _place(where: str, url: str) -> str:
    """Return host:port of an instance's URL, with its path after dashes."""
    allowed = "http://HOST:PORT or https://HOST:PORT, with or without a path other than /v1"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(where, Problem("url", url, str(error), allowed)) from None
    plain = is_base_path(parts.path) and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or port == 0:
        raise BadInput(where, Problem("url", url, "not the URL of an instance", allowed))
    return parts.netloc + parts.path.rstrip("/").replace("/", "-").replace("~", "_")


def _kv(where: str, given: dict[str, str]) -> KvFacts:
    try:
        return read_value(given, KvFacts, strict=False)
    except ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        why = ("not a number", "the bytes of one token") if name == "bytes_per_token" else ("not a bool", "true, false")
        raise BadInput(where, Problem(f"kv.{name}", given[name], *why)) from None


def _one_of(where: str, given: dict[str, str], key: str, allowed: tuple[str, ...], usual: str) -> str:
    if key in given and given[key] not in allowed:
        raise BadInput(where, Problem(key, given[key], f"not a {key}", ", ".join(allowed)))
    return given.get(key, usual)
