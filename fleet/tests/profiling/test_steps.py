"""Step times from tables that include kernels which no engine runs, or that omit some; stand-ins replace the library's
engines.
"""

from dataclasses import dataclass

import pytest

from fleet.profiling.sample_tables import KERNEL_MS, StepTables, head_norms_ms

OTHERS_MS = 10.0  # time of a step outside attention


@dataclass(frozen=True)
class Engine:
    attention_ms: float

    def predict_prefill_latency(self, _batch: int, _length: int, _before: int) -> float:
        return OTHERS_MS + self.attention_ms

    def predict_decode_latency(self, _batch: int, _context: int) -> float:
        return OTHERS_MS + self.attention_ms

    def mixed_step_latency(self, *_: int) -> float:
        return OTHERS_MS + 2 * self.attention_ms

    def run_static_per_op(self, **_: object) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        return [("context_moe", OTHERS_MS), ("context_mla_block", self.attention_ms)], []

    def decode_step_per_op(self, activations: int, *_: int) -> list[tuple[str, float]]:
        reduction = ("generation_embedding_ar", 0.001 * activations)
        return [("generation_moe", OTHERS_MS), ("generation_mla_block", self.attention_ms), reduction]


CHAIN = Engine(5.0), Engine(2.0)


def times(steps: StepTables) -> tuple[float, ...]:
    return steps.prefill_ms(512, 0), steps.decode_ms(8, 1024), steps.mixed_ms(512, 8)


def test_without_a_chain_the_tables_are_used_unchanged() -> None:
    engine = Engine(6.0)
    assert times(StepTables(engine, engine)) == (16.0, 16.0, 22.0)


def test_the_cost_of_the_chain_is_subtracted_from_each_module() -> None:
    engine = Engine(6.0)
    assert times(StepTables(engine, engine, CHAIN)) == (13.0, 13.0, 16.0)


@pytest.mark.parametrize(("own_ms", "left_ms"), [(4.0, 2.0), (1.5, 1.5)])
def test_attention_never_becomes_faster_than_without_the_chain(own_ms: float, left_ms: float) -> None:
    engine = Engine(own_ms)
    assert StepTables(engine, engine, CHAIN).decode_ms(8, 1024) == OTHERS_MS + left_ms


def test_attention_is_read_from_the_tables_of_its_format() -> None:
    assert times(StepTables(Engine(30.0), Engine(6.0))) == (16.0, 16.0, 22.0)
    assert times(StepTables(Engine(30.0), Engine(6.0), CHAIN)) == (13.0, 13.0, 16.0)


MINIMAX = {"model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072}


@pytest.mark.parametrize(("tokens", "activations"), [(1, 1), (768, 1), (8192, 11)])
def test_norms_over_all_heads_cost_four_kernels_and_a_reduction_of_their_size(tokens: int, activations: int) -> None:
    found = head_norms_ms(Engine(0.0), MINIMAX, tokens)
    assert found == pytest.approx(62 * (0.001 * activations + 4 * KERNEL_MS))
    assert head_norms_ms(Engine(0.0), {**MINIMAX, "model_type": "qwen3_moe"}, tokens) == 0


def test_costs_missing_from_the_tables_are_added_to_each_step() -> None:
    engine = Engine(6.0)
    assert times(StepTables(engine, engine, norms_ms=float)) == (16.0 + 512, 16.0 + 8, 22.0 + 520)
