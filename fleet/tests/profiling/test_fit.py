"""Fit points and slopes to sampled step times."""

from itertools import product
from typing import Any

import pytest

from fleet.profiling.fit import BLOCK_FP8, CHAINED, Layout, decode_part, errors, family_of, prefill_part, tables_of

PAIR_MS, CONTEXT_MS = 2e-6, 2.5e-5
NEW, BEFORE = (1, 256, 264, 8192), (0, 2048, 8192)
BATCHES, CONTEXTS = (1, 8, 64, 256), (256, 4096)
CONFIG: dict[str, Any] = {"num_hidden_layers": 36}
LAYOUT = Layout(model="acme/Model-7B", name="Model-7B", gpu="h100_sxm", tp=2)


def linear_ms(n: int) -> float:
    """Return a time that jumps after 256 tokens, where the library chooses another kernel."""
    return 10 + n * 0.05 + (20 if n > 256 else 0)


PREFILL = [(n, c, linear_ms(n) + PAIR_MS * n * (c + n / 2)) for n, c in product(NEW, BEFORE)]
DECODE = [(n, c, linear_ms(n) / 2 + CONTEXT_MS * n * c) for n, c in product(BATCHES, CONTEXTS)]
TRIED = {
    "prefill": [(n, c, linear_ms(n) + PAIR_MS * n * (c + n / 2)) for n, c in ((32, 500), (600, 0), (4000, 9000))],
    "decode": [(128, 1000, linear_ms(128) / 2 + CONTEXT_MS * 128_000)],
    "mixed": [(512, 8, linear_ms(520) + PAIR_MS * 512 * 256 + CONTEXT_MS * 8 * 512)],
}
ANSWER = {
    "prefill": PREFILL,
    "decode": DECODE,
    "tried": TRIED,
    "config": CONFIG,
    "weight_bytes": 7e9,
    "kv_bytes_per_token": 65_536.001,
    "library": "0.12.0",
    "engine": "0.24.0",
    "measured": 0.91234,
    "chained": False,
}


def test_the_slopes_and_the_linear_part_of_a_known_law_are_recovered() -> None:
    prefill, decode = prefill_part(PREFILL), decode_part(DECODE)
    assert prefill.slope_ms == pytest.approx(PAIR_MS)
    assert decode.slope_ms == pytest.approx(CONTEXT_MS)
    assert dict(zip(*prefill.points, strict=True)) == pytest.approx({n: linear_ms(n) for n in NEW}, rel=1e-3)
    assert max(map(abs, errors(prefill, decode, TRIED))) < 0.003


def test_points_on_a_straight_line_are_not_stored() -> None:
    assert decode_part([(n, c, 10 + n) for n in range(1, 100) for c in (0, 100)]).points[0] == (1, 99)


def test_a_profile_names_its_source_its_errors_and_its_reservations() -> None:
    made = tables_of(LAYOUT, ANSWER)
    assert (made.source, made.measured, made.formats) == (
        "aiconfigurator-core 0.12.0, tables of vLLM 0.24.0",
        0.912,
        "as published",
    )
    assert made.grid_error < 0.003
    assert made.notes == ()
    block = {**CONFIG, "quantization_config": {"weight_block_size": [128, 128]}}
    assert tables_of(LAYOUT, {**ANSWER, "config": block}).notes == (BLOCK_FP8,)
    assert tables_of(LAYOUT, {**ANSWER, "chained": True}).notes == (CHAINED,)


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({}, "dense"),
        ({"num_local_experts": 8}, "moe"),
        ({"text_config": {"n_routed_experts": 256, "kv_lora_rank": 512}}, "latent"),
    ],
)
def test_a_models_configuration_reports_its_family(config: dict[str, Any], family: str) -> None:
    assert family_of(config) == family
