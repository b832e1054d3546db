"""Public traces, where the data folder is present: their figures are the published ones."""

from pathlib import Path

import pytest

from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.summary import summarise

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"

FIGURES = [
    ("conversation_trace.jsonl", 12_031, 0, 12_035, 343, 0.374, 0.094),
    ("coding_agent_trace.jsonl", 17_274, 237, 122_452, 413, 0.964, 0.028),
    ("azure_code_2023.csv", 8_819, 0, 2_048, 28, 0.0, 0.0),
]


@pytest.mark.parametrize(("name", "requests", "sessions", "mean_input", "mean_output", "hits", "heavy"), FIGURES)
def test_a_public_trace_has_its_published_figures(name, requests, sessions, mean_input, mean_output, hits, heavy):
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    summary = summarise(registry.read(path.read_bytes(), seed=1).requests)
    assert (summary.requests, summary.sessions) == (requests, sessions)
    assert summary.mean_input_tokens == pytest.approx(mean_input, abs=1)
    assert summary.mean_output_tokens == pytest.approx(mean_output, abs=1)
    assert summary.ideal_hit_share == pytest.approx(hits, abs=0.001)
    assert summary.heavy_share == pytest.approx(heavy, abs=0.001)
