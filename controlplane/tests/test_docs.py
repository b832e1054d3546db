"""The documents agree with the code: every setting, command, route, key and target is in them."""

import json
import pkgutil
import re
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from router.tests.contract import every_kind

CODE = Path(__file__).resolve().parents[2]
OWN = ("controlplane", "fleet", "router")
READS = re.compile(
    r"""\benv\.(?:text|flag|words|pairs|choice|span|networks|database|allowed|folders|seconds|needed|http_url|time_zone)\(\s*"([A-Z_]+)"|environ(?:\.get\(|\[)\s*"([A-Z_]+)\""""
    r'|"(WEIR_ROUTER_[A-Z_]+|WEIR_SPANS_[A-Z_]+|OTEL_[A-Z_]+)"'
)
PAGES = ["README.md", "CONTRIBUTING.md", "bench/README.md"]
PAGES += sorted(str(path.relative_to(CODE)) for path in (CODE / "docs").rglob("*.md"))
XDIST = {"PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"}
INTERNAL = {"DJANGO_SETTINGS_MODULE", "WEIR_SECOND_CHANCES", "WEIR_TESTS_UNTIL", *XDIST}  # not for operators


def read(path):
    return (CODE / path).read_text()


def sources(*folders):
    for folder in folders:
        for path in (CODE / folder).rglob("*.py"):
            if "tests" not in path.parts and "out" not in path.relative_to(CODE).parts:  # output of benches
                yield path


def variables_read():
    return {
        name
        for path in sources(*OWN)
        for groups in READS.findall(path.read_text())
        for name in groups
        if name and name not in INTERNAL
    }


def test_the_search_for_settings_finds_every_reader_of_a_variable():
    assert {"WEIR_DATA_DIR", "REDIS_URL", "DATABASE_URL", "WEIR_ADMIN_PASSWORD"} <= variables_read()


def test_every_setting_is_documented_and_nothing_else():
    assert set(re.findall(r"^\| `([A-Z_]+)`", read("docs/settings.md"), re.MULTILINE)) == variables_read()


def own_commands():
    return sorted(name for name, app in get_commands().items() if app.split(".")[0] in OWN)


def test_every_management_command_is_documented():
    text = read("docs/commands.md")
    missing = [name for name in own_commands() if f"`{name}" not in text and f"## {name}" not in text]
    assert missing == []


def test_every_flag_of_up_is_documented():
    flags = re.findall(r'add_argument\(\s*"(--[a-z-]+)"', read("controlplane/management/commands/up.py"))
    assert len(flags) > 5
    assert [flag for flag in flags if f"`{flag}" not in read("docs/commands.md")] == []


def targets():
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


def own_flags():
    """Return (command, option) of each management command, without Django's."""
    common = {flag for action in BaseCommand().create_parser("", "")._actions for flag in action.option_strings}
    own = {name: app for name, app in get_commands().items() if app.split(".")[0] in ("controlplane", "fleet")}
    for name, app in own.items():
        for action in load_command_class(app, name).create_parser("", name)._actions:
            yield from ((name, flag) for flag in action.option_strings if flag.startswith("--") and flag not in common)


def test_every_flag_of_a_management_command_is_in_its_row():
    text = read("docs/commands.md")
    up, others = text[text.index("## up") :].split("## The others")
    rows = {"up": up}
    for line in others.splitlines():
        if found := re.match(r"\| `(\w+)", line):
            rows[found[1]] = rows.get(found[1], "") + line
    flags = list(own_flags())
    assert ("deliver", "--wait") in flags
    assert [(name, flag) for name, flag in flags if flag not in rows.get(name, "")] == []


def test_every_make_target_is_documented():
    assert set(re.findall(r"^\| `make ([a-z-]+)`", read("docs/commands.md"), re.MULTILINE)) == targets()


def test_the_readme_shows_both_commands_of_the_makefile():
    commands = re.findall(r"^make (\w+)", read("README.md").split("```")[1], re.MULTILINE)
    assert commands == ["run", "test"]


@pytest.mark.parametrize("path", PAGES)
def test_make_commands_in_documents_exist(path):
    assert set(re.findall(r"`(?:[A-Z]+=\S+ )*make ([a-z-]+)", read(path))) <= targets()


@pytest.mark.parametrize("path", PAGES)
def test_links_in_documents_point_to_something(path):
    folder = (CODE / path).parent
    links = [link for link in re.findall(r"\]\(([^)#]+)", read(path)) if "://" not in link]
    assert [link for link in links if not (folder / link).exists()] == []


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", read(page), flags=re.DOTALL), re.MULTILINE)
    words = (re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}


@pytest.mark.parametrize("path", PAGES)
def test_anchors_in_documents_are_headings(path):
    page = (CODE / path).resolve()
    links = re.findall(r"\]\(([^)#\s:]*\.md)?#([a-z0-9_-]+)\)", page.read_text())
    where = [((page.parent / target) if target else page, anchor) for target, anchor in links]
    assert [anchor for target, anchor in where if anchor not in anchors(target)] == []


def test_every_document_is_in_the_index():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", read("docs/README.md"))) | {"README.md"}
    assert {path.name for path in (CODE / "docs").glob("*.md")} == listed


def test_every_picture_is_generated_and_shown_in_both_themes():
    made = re.findall(r'Picture\("([a-z0-9-]+)"', read("docs/screenshots.py"))
    there = {path.name for path in (CODE / "docs/img").iterdir()}
    assert there == {f"{name}-{theme}.png" for name in made for theme in ("light", "dark")}
    shown = "".join(map(read, PAGES))
    assert [name for name in made if f"img/{name}-light.png)" not in shown] == []


FOLDERS = "router|fleet|controlplane|docs|templates|static|bench|deploy|examples"


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_documents_exist(page):
    """`router/policy/strategies/NAME.py` in a recipe stands for a file that the reader writes."""
    named = re.findall(rf"`((?:{FOLDERS})/[a-zA-Z0-9_/.-]+)(?:::\w+)?`", read(page))
    assert [name for name in named if not re.search(r"NAME|SUBJECT", name) and not (CODE / name).exists()] == []


OTHERS = r"(?:vllm|sglang|tensorrt_llm|lmcache)/"


def test_modules_named_in_code_exist():
    there = (path for folder in (*OWN, "bench", "examples") for path in (CODE / folder).rglob("*.py"))
    known = "".join(f"/{path.relative_to(CODE)}\n" for path in there) + "/manage.py\n"
    wrong = {
        f"{path.relative_to(CODE)}: {name}"
        for path in sources(*OWN, "bench")
        for name in re.findall(rf"(?<![\w/.])(?!{OTHERS})[\w/]+\.py\b", path.read_text())
        if f"/{name}\n" not in known
    }
    assert wrong == set()


@pytest.mark.parametrize("page", PAGES)
def test_python_names_in_documents_exist(page):
    for name in re.findall(r"`((?:router|fleet|controlplane)(?:\.(?!py`)\w+)+)(?:\(.*?\))?`", read(page)):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/glossary.md"])
def test_modules_are_named_by_their_full_path(page):
    """A bare `services.py` could be any of several."""
    assert re.findall(r"`(\w+\.py)`", read(page).replace("`urls.py`", "")) == []


def test_the_published_description_of_the_api_equals_the_served_description():
    from controlplane.doors.api.api import api

    served = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    assert json.loads(read("docs/openapi.json"))["paths"].keys() == served["paths"].keys()


def redis_table():
    """Return {key: value} of docs/redis.md."""
    return dict(re.findall(r"^\| `(weir:.+?)` \|.*\| (.+?) \|$", read("docs/redis.md"), re.MULTILINE))


def test_every_redis_key_is_documented():
    from router.contract.redis import redis_keys

    table = {re.sub(r"<[^>]+>", "", key) for key in redis_table()}
    named = {v for k, v in vars(redis_keys).items() if k.isupper() and str(v).startswith(redis_keys.PREFIX)}
    made = {
        function(*[""] * function.__code__.co_argcount)
        for name, function in vars(redis_keys).items()
        if name.endswith("_key")
    }
    known = table | {key.rstrip(":") for key in table}  # a constant may contain the part before the variable one
    assert (named | made) - {redis_keys.PREFIX} <= known


def test_every_value_in_redis_names_its_keys():
    """The struct in the table is one of router/contract, whose docstring begins with that key."""
    kinds = every_kind()
    named = {key: re.findall(r"`([A-Z]\w+)`", value) for key, value in redis_table().items()}
    assert {name for names in named.values() for name in names} == kinds.keys()
    assert [key for key, names in named.items() for name in names if key not in kinds[name].__doc__] == []


def test_every_metric_of_the_router_is_documented():
    given = re.findall(r'(?:counter|gauge|each|_single|_total|histogram)\(\s*"([a-z_]+)"', read("router/metrics.py"))
    assert len(given) > 10
    assert [name for name in given if f"`weir_router_{name}" not in read("docs/router.md")] == []
