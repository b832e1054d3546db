"""The page of Neuron's disaggregated inference, and its rows of docs/findings/reproduced.md."""

from pathlib import Path

import pytest

from controlplane.evidence.systems.neuron import NEURON, NeuronInputs, play_inputs
from controlplane.evidence.systems.neuron_play import TRAFFIC, guide, readings
from controlplane.evidence.systems.registry import ask, figures
from controlplane.evidence.systems.system import Answer, Value

TWIN = (Path(__file__).resolve().parents[4] / "docs" / "findings" / "reproduced.md").read_text()


def fact(answer: Answer, label: str) -> Value:
    return next(one.value for one in answer.facts if one.label.startswith(label))


def test_at_the_guides_rates_one_prefill_worker_needs_two_decoders() -> None:
    first, second = (ask(NEURON, dict(NEURON.presets[name])) for name in ("1P1D, the guide's rates", "1P2D"))
    assert "decode is the slower side" in first.verdict
    assert "1P2D would be in balance" in first.verdict
    assert "both sides are in balance" in second.verdict
    assert fact(first, "Balance") == "1P2D"


def test_seven_interruptions_are_compared_with_none_and_one_transfer() -> None:
    answer = ask(NEURON, {})
    assert fact(answer, "Interruptions per answer, continuous") == pytest.approx(7, abs=0.2)
    assert fact(answer, "Interruptions per answer, disaggregated") == 0
    assert fact(answer, "Transfers per answer") == 1
    assert fact(answer, "Largest batch") > fact(answer, "The same, continuous batching")  # type: ignore[operator]


def test_a_slow_link_and_a_small_batch_block_the_prefill() -> None:
    """The prefill's slots wait for transfers, which run one at a time and take a second each."""
    answer = ask(NEURON, {"decodes": 4, "rate": 3.0, "transfer_gb_per_s": 0.33, "prefill_batch": 2})
    assert fact(answer, "Prefill blocked") > 1  # type: ignore[operator]


def test_longer_prompts_lengthen_the_gaps_of_continuous_batching_only() -> None:
    (played, doubled, *_) = ask(NEURON, {"decodes": 2, "rate": 1.5}).tables
    rows = {str(row[0]): row[1:] for row in doubled.rows}
    assert [*rows] == ["disaggregated", "continuous batching", "chunked prefill"]
    assert [row[0] for row in played.rows] == ["3 × continuous batching", "3 × chunked prefill", "disaggregated"]
    (_, first, before, after), (_, _, both_before, both_after) = (
        (None, *rows[name][1:]) for name in ("disaggregated", "continuous batching")
    )
    assert first > rows["disaggregated"][0]  # type: ignore[operator]
    assert after == pytest.approx(before, rel=0.15)
    assert both_after > 1.3 * both_before  # type: ignore[operator]


def test_both_sides_grow_by_the_autoscalers_rules_when_traffic_changes() -> None:
    """In the guide's example, a second decoder comes first, then twice the prefill workers for twice the prompts, then
    decoders.
    """
    found = list(readings(guide(), 3.2))
    assert [(one.traffic, one.prefills, one.decodes) for one in found] == [
        ("as given", 1, 1),
        ("as given", 1, 2),
        ("prompts doubled", 1, 2),
        ("prompts doubled", 2, 2),
        ("answers doubled, too", 2, 2),
        ("answers doubled, too", 2, 4),
    ]
    assert [one.point.answers_per_s for one in found[1::2]] == pytest.approx([3.2] * 3, rel=0.05)
    assert all(one.point.answers_per_s < 2.2 for one in found[::2])
    (table,) = (table for table in ask(NEURON, {}).tables if table.title.startswith("Scaled"))
    assert {row[6] for row in table.rows} >= {"stays"}


def test_scaled_workers_match_the_offered_load_and_settle() -> None:
    found = list(readings(play_inputs(NeuronInputs()), 1.8))
    sizes = [(one.traffic, one.prefills, one.decodes) for one in found]
    assert len(set(sizes)) == len(sizes)
    ends = [one for one in found if one.advised is None]
    assert [one.traffic for one in ends] == [*TRAFFIC]
    assert all(one.point.answers_per_s > 1.6 and one.decode_busy > 0.4 for one in ends)


@pytest.mark.parametrize("rate", [0.4, 0.8, 1.2])
def test_decoders_hold_what_the_offered_load_needs_not_a_full_batch(rate: float) -> None:
    """By Little's law, a batch of 8 holds the requests that arrive while one answer is written."""
    setup = guide()
    (reading, *_) = readings(setup, rate)
    answer_s = setup.work.output_tokens * setup.decode_law.step_s(1, 0.0, 0, 1)
    assert (reading.prefills, reading.decodes) == (1, 1)
    assert reading.decode_busy == pytest.approx(rate * answer_s / setup.decode_batch, rel=0.2)
    assert reading.point.answers_per_s == pytest.approx(rate, rel=0.15)


def test_more_requests_than_can_be_served_give_a_caution() -> None:
    assert any("queues grow" in one for one in ask(NEURON, {"rate": 5.0}).cautions)
    assert not any("queues grow" in one for one in ask(NEURON, {}).cautions)


def doc_row(name: str, published: str, ours: str, note: str) -> str:
    return f"| {name} | {published} | {ours} | {note} |"


def test_the_documents_values_are_those_of_the_page() -> None:
    for one in figures("neuron"):
        published = "–" if one.published is None else f"{one.published:g} {one.unit}".strip()
        ours = f"{one.ours:.3g} {one.unit}".strip()
        assert doc_row(one.name, published, ours, one.note) in TWIN
