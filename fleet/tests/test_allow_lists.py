"""The values that administrators allow in a fleet document."""

from pathlib import Path
from typing import Any

import pytest

from fleet import services
from fleet.kinds import KINDS
from fleet.models import State
from fleet.spec.allow_lists import AllowLists, refusals
from fleet.spec.fleet_spec import InvalidFleet
from fleet.tests.world import World

OPEN = AllowLists()
CLOSED = AllowLists((), (), (), ())


def refused(lists: AllowLists, kind: str = "vllm", named: str = "org/model", **engine: Any) -> list[str]:
    return [problem.path.removeprefix("p.engine.") for problem in refusals(lists, KINDS[kind], named, engine, "p")]


def test_without_lists_everything_is_allowed() -> None:
    engine = {"python": "/x", "environment": {"A": "/b"}, "arguments": ["-x", "/y"], "model": "/z", "disk": "/d"}
    assert refused(OPEN, **engine) == []


def test_empty_lists_refuse_each_option_by_path_and_allowed_values() -> None:
    engine = {"environment": {"A": "/b"}, "arguments": ["--x", "/y"], "model": "/z"}
    assert refused(CLOSED, **engine) == [
        "model", "python", "arguments[0]", "arguments[1]", "environment.A", "environment.A",
    ]  # fmt: skip
    (problem,) = refusals(AllowLists(variables=("HF_*", "B")), KINDS["vllm"], "m", {"environment": {"A": "1"}}, "p")
    assert str(problem) == (
        "p.engine.environment.A: the administrators do not allow this variable (WEIR_ALLOWED_VARIABLES); "
        "allowed: HF_*, B (got 'A')"
    )


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ("python3", True),  # the default must be listed, too
        ("/opt/vllm/bin/python", True),
        ("/opt/vllm/../vllm/bin/python", True),
        ("/opt/vllm/bin/../../../bin/sh", False),
        ("./venv/bin/python", False),
        ("sh", False),
    ],
)
def test_a_program_matches_a_name_or_a_pattern_of_paths(given: str, allowed: bool) -> None:
    lists = AllowLists(programs=("python3", "/opt/vllm/*"))
    assert (refused(lists, python=given) == []) is allowed


def test_a_default_program_must_be_listed() -> None:
    assert refused(AllowLists(programs=("/opt/vllm/bin/python",))) == ["python"]
    assert refused(AllowLists(programs=("mooncake_master",)), "mooncake-master") == []


def test_an_image_is_a_program() -> None:
    lists = AllowLists(programs=("python3", "vllm/*"))
    assert refused(lists, image="vllm/vllm-openai:v0.11") == []
    assert refused(lists, image="evil/vllm") == ["image"]


@pytest.mark.parametrize(
    "model",
    ["/models", "/models/llama", "meta-llama/Llama-3.1-8B", "llama", "/data/../models/x", "http://host/a/b/c"],
)
def test_a_path_in_a_folder_of_the_list_and_a_hub_name_are_allowed(model: str) -> None:
    lists = AllowLists(folders=("/models/", "/data"))
    assert refused(lists, named=model) == []
    assert refused(lists, model=model) == []


@pytest.mark.parametrize(
    "model",
    [
        "/modelsx", "/", "/models/../etc", "./var", "../x", "~/x", "~root/x", "a/../../x", "a/b/c", "file:///etc", "..",
        "x:/etc",
    ],
)  # fmt: skip
def test_every_other_path_is_refused(model: str) -> None:
    lists = AllowLists(folders=("/models",))
    assert refused(lists, named=model) == ["p.model"]
    assert refused(lists, model=model) == ["model"]
    assert refused(lists, disk=model) == ["disk"]
    assert refused(lists, environment={"A": f"x={model}"}) == ["environment.A"]
    assert refused(lists, arguments=["--a", f'{{"b": "{model}"}}']) == ["arguments[1]"]


def test_an_argument_is_a_listed_flag_or_the_value_after_one() -> None:
    lists = AllowLists(arguments=("--max-*", "--seed", "-v"))
    assert refused(lists, arguments=["--max-loras", "4", "--seed=1", "-v", "--seed", "-1"]) == []
    assert refused(lists, arguments=["4", "--seed=1", "2", "--api-key", "x", "--trust-remote-code"]) == [
        "arguments[0]", "arguments[2]", "arguments[3]", "arguments[5]",
    ]  # fmt: skip


def test_only_paths_that_weir_reads_are_checked_for_an_external_engine() -> None:
    assert refused(CLOSED, "external", urls=["http://10.0.0.7:8000"], tokenizer="hub/name") == []
    assert refused(CLOSED, "external", urls=["http://10.0.0.7:8000"], tokenizer="/x") == ["tokenizer"]


def document(**engine: Any) -> dict[str, Any]:
    pools = [{"name": "a", "model": "m", "kind": "vllm", "engine": {}}]
    pools.append({"name": "b", "model": "m", "kind": "vllm", "engine": engine})
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": pools}}


@pytest.mark.django_db
def test_a_document_is_checked_in_a_dry_run_and_when_it_is_applied(settings: Any) -> None:
    settings.ALLOWED_VARIABLES = ("HF_*",)
    for dry_run in (True, False):
        with pytest.raises(InvalidFleet) as refusal:
            services.apply_fleet(document(environment={"LD_PRELOAD": "x"}), "otto", dry_run)
        assert [problem.path for problem in refusal.value.problems] == ["spec.pools[1].engine.environment.LD_PRELOAD"]
    assert services.apply_fleet(document(environment={"HF_HOME": "x"}), "otto", True).drift


@pytest.mark.django_db
def test_the_pool_of_an_experiment_is_checked(settings: Any) -> None:
    services.apply_fleet(document(), "otto")
    settings.ALLOWED_ARGUMENTS = ("--seed",)
    like = services.selectors.pool("a")
    with pytest.raises(InvalidFleet, match=r"pool\.engine\.arguments\[0\]: the administrators do not allow"):
        services.create_ephemeral_pool("exp-1", like, engine_overrides={"arguments": ["--x"]}, owner="run 1")


def test_a_node_checks_each_start_again_and_follows_links(world: World, settings: Any, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link").symlink_to("/etc")
    settings.ALLOWED_FOLDERS = (str(tmp_path / "models"),)
    world.apply(1, dies=f"{tmp_path}/models/link/passwd")  # where the document is applied, the link is only a name
    world.until(world.is_in(State.FAILED))
    assert "p.engine.dies: the administrators do not allow this folder (WEIR_ALLOWED_FOLDERS)" in world.one().reason
    assert world.processes() == []


def test_a_node_checks_each_start_by_its_own_lists(world: World, settings: Any) -> None:
    settings.ALLOWED_PROGRAMS, settings.ALLOWED_FOLDERS = (), ()
    world.apply(1)
    world.until_ready(1)
