"""Run the child process with the library itself: the shipped profiles match its tables."""

import pytest

from bench.catalogue import layouts
from fleet.engine.tables import catalogue
from fleet.profiling.fit import Layout
from fleet.profiling.make import MISSING, is_installed, make_all

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_installed(), reason=MISSING)]

SHIPPED = (
    ("h100_sxm", "gpt-oss-120b", 2, 1, 1),
    ("b300_sxm", "Kimi-K2.5-NVFP4", 8, 1, 1),
    ("h200_sxm", "DeepSeek-V3", 8, 1, 1),
    ("b200_sxm", "MiniMax-M2.5", 4, 1, 1),
)


def test_the_catalogue_equals_the_tables() -> None:
    asked = {(one.gpu, one.name, one.tp, one.dp, one.ep): one for one in layouts()}
    assert make_all([asked[key] for key in SHIPPED]) == [catalogue()[key] for key in SHIPPED]


def test_a_layout_missing_from_the_tables_is_refused_with_a_reason() -> None:
    gpu, model, format_ = make_all(
        [
            Layout(model="Qwen/Qwen3-32B", name="Qwen3-32B", gpu="l4"),
            Layout(model="acme/unheard-of", name="unheard-of", gpu="h100_sxm"),
            Layout(model="Qwen/Qwen3-32B", name="Qwen3-32B", gpu="h100_sxm", gemm="nvfp4"),
        ]
    )
    assert "l4" in str(gpu)
    assert "no configuration of acme/unheard-of: give its config.json" in str(model)
    assert isinstance(format_, str)
