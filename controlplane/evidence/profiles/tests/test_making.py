"""Profiles over REST: the catalogue, and computing another one."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.evidence.profiles import services
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import ApiCaller, api_caller
from fleet.engine.profiles import profile_by, read
from fleet.kinds import KINDS
from fleet.kinds.kind import check_engine
from fleet.profiling import make
from fleet.tests.profiling.standin import asked, interpreter

pytestmark = pytest.mark.django_db
BODY = {"model": "acme/Model-7B", "gpu": "h200_sxm", "tp": 2, "quantization": "bf16", "kv_dtype": "fp8"}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEIR_PROFILES_PYTHON", interpreter(tmp_path))
    return tmp_path


def test_a_computed_profile_agrees_with_the_tables_and_fits_the_option_of_a_pool(ci: ApiCaller, tables: Path) -> None:
    made = ci.post("/profiles", BODY).json()
    assert (made["name"], made["family"], made["expected"]["tpot"]) == ("Model-7B-BF16", "dense", 0.14)
    assert made["source"] == "aiconfigurator-core 0.12.0, tables of vLLM 0.24.0"
    words = asked(tables)
    assert (words["gemm"], words["moe"], words["kv"], words["tp"]) == ("bfloat16", "bfloat16", "fp8", 2)
    assert profile_by(read(made["profile"])).gpu == "h200_sxm"
    assert check_engine(KINDS["sim"], {"profile": made["profile"]}, "engine") == []
    entry = AuditEntry.objects.get(action="profile.make")
    assert (entry.subject, entry.after["layout"]) == ("acme/Model-7B", "tp 2")


REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"gpu": "h999"}, "gpu", "h100_sxm, h200_sxm"),
    ({"ep": 3}, "ep", "must be 1 or tp x dp"),
    ({"model": "../etc"}, "model", "must match the pattern"),
    ({"quantization": "fp2"}, "quantization", "must be"),
    ({"tp": 0}, "tp", "at least 1"),
)


def test_impossible_input_is_refused_before_the_tables_are_read(ci: ApiCaller) -> None:
    for changes, path, says in REFUSED:
        answer = ci.post("/profiles", {**BODY, **changes})
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert problem["path"].endswith(path)
        assert says in str(problem), changes


def test_models_unknown_to_the_tables_are_refused_with_the_reason(
    ci: ApiCaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_PROFILES_PYTHON", interpreter(tmp_path, error="no data of l4"))
    answer = ci.post("/profiles", BODY)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "model")
    assert "no data of l4" in answer.text
    monkeypatch.setenv("WEIR_PROFILES_PYTHON", interpreter(tmp_path, weight_bytes=9e14))
    assert "does not fit on 2 h200_sxm" in ci.post("/profiles", BODY).text
    assert not AuditEntry.objects.filter(action="profile.make").exists()


def test_a_missing_library_a_dead_child_and_a_second_concurrent_one_are_reported(
    ci: ApiCaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_PROFILES_PYTHON", str(tmp_path / "nowhere"))
    answer = ci.post("/profiles", BODY)
    assert (answer.status_code, make.MISSING in answer.text) == (409, True)
    monkeypatch.setenv("WEIR_PROFILES_PYTHON", interpreter(tmp_path, dies="out of memory"))
    assert "aiconfigurator-core failed: out of memory" in ci.post("/profiles", BODY).text
    with services._one:
        assert services.BUSY in ci.post("/profiles", BODY).text


def test_the_catalogue_is_listed_by_gpu_and_model(ci: ApiCaller) -> None:
    found = ci.get("/profiles?gpu=b200_sxm&model=GPT-oss-120b").json()
    assert {(one["gpu"], one["name"]) for one in found} == {("b200_sxm", "gpt-oss-120b")}
    assert {one["tp"] for one in found} == {1, 2, 4, 8}
    assert len(ci.get("/profiles").json()) > 200


def test_a_viewer_cannot_compute_a_profile(vera: Any, tables: Path) -> None:
    assert api_caller(vera).post("/profiles", BODY).status_code == 403
