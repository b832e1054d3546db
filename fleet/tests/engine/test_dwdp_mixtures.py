"""The sizes of mixtures of experts agree with the catalogue of profiles."""

import pytest

from fleet.engine.dwdp.machine import B200, GB200, GPUS, H100
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.dwdp.servers import Machine, dep_server, dwdp_server
from fleet.engine.tables import Tables, catalogue

OF_CATALOGUE: dict[str, Tables] = {}
for tables in catalogue().values():
    if tables.has_experts and tables.dp == 1:
        OF_CATALOGUE.setdefault(tables.name, tables)


def test_each_mixture_of_the_catalogue_can_be_served_in_groups() -> None:
    assert MOES.keys() - OF_CATALOGUE.keys() == {"DeepSeek-R1"}
    assert OF_CATALOGUE.keys() <= MOES.keys()


@pytest.mark.parametrize("name", OF_CATALOGUE)
def test_a_mixture_has_the_weights_of_the_catalogue(name: str) -> None:
    moe, tables = MOES[name], OF_CATALOGUE[name]
    assert moe.layers == tables.layers
    attention = moe.attention_weights * moe.attention_bytes_per_weight * moe.layers
    weights = (moe.experts + moe.shared) * moe.expert_bytes * moe.moe_layers + attention
    assert weights == pytest.approx(tables.weight_bytes * tables.tp, rel=0.12)


def test_the_peak_follows_from_the_precision_of_the_experts() -> None:
    r1, v3, mixtral = MOES["DeepSeek-R1"], MOES["DeepSeek-V3"], MOES["Mixtral-8x7B-v0.1"]
    assert [GB200.serving(moe).expert_flops for moe in (r1, v3, mixtral)] == [10e15, 5e15, 2.5e15]
    assert [H100.serving(moe).expert_flops for moe in (r1, v3, mixtral)] == [1.979e15, 1.979e15, 0.9895e15]
    assert GPUS["B200"].serving(MOES["gpt-oss-120b"]) == B200


def test_a_smaller_model_leaves_more_kv_and_computes_faster() -> None:
    r1, small = Machine(), Machine(MOES["gpt-oss-120b"], B200)
    assert dwdp_server(4, of=small).kv_tokens(0.9) > 2 * dwdp_server(4).kv_tokens(0.9)
    of_r1, of_small = (dep_server(4, 0, of).law.step_s(32_768, 0.0, 0, 0) for of in (r1, small))
    assert of_small < of_r1 / 2
    assert "gpt-oss-120b MXFP4 on B200" in small.about
