"""Limits that the engine reports take precedence over its options, and both over vLLM's defaults."""

from dataclasses import replace
from typing import Any

import pytest

from fleet.calibration.engine_facts import EngineFacts
from fleet.calibration.limits import EngineLimits, NoCache, limits_of
from fleet.kinds.external import ExternalSpec
from fleet.kinds.vllm.vllm_spec import VllmSpec

SAID = EngineFacts(window=4096, kv_blocks=1024, block_size=32, active=0, prompt_tokens=0.0, time_scale=1.0)


@pytest.mark.parametrize(
    ("spec", "sequences", "batched"),
    [
        (VllmSpec(max_num_seqs=7, max_num_batched_tokens=512), 7, 512),
        (VllmSpec(device="cpu"), 128, 2048),
        (VllmSpec(device="cpu", tensor_parallel=2), 256, 4096),
        (VllmSpec(), 1024, 8192),
        (ExternalSpec(), 256, 8192),
    ],
)
def test_without_a_report_the_limits_come_from_the_options_or_vllms_defaults(
    spec: Any, sequences: int, batched: int
) -> None:
    assert limits_of(spec, SAID) == EngineLimits(1024, 32, sequences, batched, 4096)


def test_the_engines_own_scheduling_limits_come_first() -> None:
    said = replace(SAID, max_num_seqs=64, max_num_batched_tokens=2048, async_scheduling=False, version=(0, 24))
    spec = VllmSpec(max_num_seqs=7, max_num_batched_tokens=512)
    assert limits_of(spec, said) == EngineLimits(1024, 32, 64, 2048, 4096, async_scheduling=False)


@pytest.mark.parametrize(("version", "ahead"), [((0, 13), False), ((0, 14), True), ((1, 0), True), (None, True)])
def test_steps_are_planned_ahead_from_the_version_that_does_so(version: tuple[int, int] | None, ahead: bool) -> None:
    assert limits_of(VllmSpec(), replace(SAID, version=version)).async_scheduling is ahead


def test_a_request_is_never_longer_than_the_cache() -> None:
    assert limits_of(VllmSpec(), replace(SAID, kv_blocks=10)).window == 320


def test_the_window_comes_from_the_options_if_the_engine_reports_none() -> None:
    silent = replace(SAID, window=None)
    assert limits_of(VllmSpec(max_model_len=2048), silent).window == 2048
    assert limits_of(ExternalSpec(), silent).window == 8192


def test_an_engine_that_does_not_report_its_cache_is_refused() -> None:
    with pytest.raises(NoCache, match="do not report its number of KV blocks"):
        limits_of(ExternalSpec(), replace(SAID, kv_blocks=None))
