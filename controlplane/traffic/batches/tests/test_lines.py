"""Valid lines of a batch, and results that a crash cut off."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.traffic.batches import lines, turns
from controlplane.traffic.batches.store import BatchResults, content
from router.contract.redis.sample import InstanceSample

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def line(name: str = "a", **changes: Any) -> bytes:
    made = {"custom_id": name, "method": "POST", "url": CHAT, "body": {"model": "m", "messages": []}} | changes
    return json.dumps(made).encode() + b"\n"


def test_lines_are_found_by_their_place() -> None:
    raw = [line("a"), b"\n", line("b")]
    found = lines.check(raw, CHAT)
    assert [b"".join(raw)[one.start : one.start + one.size] for one in found.lines] == [raw[0], raw[2]]
    assert json.loads(lines.body_of(raw[2])) == {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ([b"{\n"], "invalid_json_line", None),
        ([b"[]\n"], "invalid_json_line", None),
        ([line(""), line("b")], "invalid_custom_id", "custom_id"),
        ([line("a"), line("a")], "duplicate_custom_id", "custom_id"),
        ([line(method="GET")], "invalid_method", "method"),
        ([line(url="/v1/completions")], "mismatched_endpoint", "url"),
        ([line(body={})], "invalid_request", "body"),
        ([line(body={"model": "m", "stream": True})], "invalid_request", "body.stream"),
        ([line(url=RESPONSES, body={"model": "m", "background": 1})], "invalid_request", "body.background"),
        ([b"\n"], "empty_file", None),
        ([b"x" * (lines.LONGEST_LINE + 1)], "line_too_long", None),
    ],
)
def test_the_problem_of_a_line_is_named(raw: list[bytes], code: str, param: str | None) -> None:
    (fault,) = lines.check(raw, RESPONSES if param == "body.background" else CHAT).faults
    assert (fault.code, fault.param) == (code, param)


def test_a_field_without_meaning_for_an_endpoint_is_accepted() -> None:
    assert lines.check([line(body={"model": "m", "background": True})], CHAT).faults == []


def test_the_number_of_lines_and_problems_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    assert [one.code for one in lines.check([line(str(i)) for i in range(9)], CHAT).faults] == ["too_many_lines"]
    assert len(lines.check([b"{\n"] * 500, CHAT).faults) == lines.MOST_FAULTS


def test_the_number_of_models_in_a_batch_is_limited() -> None:
    def naming(count: int) -> list[bytes]:
        return [line(str(i), body={"model": f"m{i % count}"}) for i in range(2 * count)]

    assert lines.check(naming(lines.MOST_MODELS), CHAT).faults == []
    (fault,) = lines.check(naming(lines.MOST_MODELS + 1), CHAT).faults
    assert (fault.code, fault.line, fault.param) == ("too_many_models", lines.MOST_MODELS + 1, "body.model")


def test_an_incomplete_last_line_is_removed_and_written_again(data_dir: Path) -> None:
    results = BatchResults("batch_1")
    for name in ("a", "b"):
        results.add(results.output, lines.answered(("batch_1", 1, name), 200, "r", {"x": "y" * 70_000}, None))
    results.flush()
    results.close()
    whole = results.output.read_bytes()
    for torn in (whole[:-1], whole[: whole.index(b"\n") + 2], whole[: whole.index(b"\n") + 1]):
        results.output.write_bytes(torn)
        again = BatchResults("batch_1")
        assert again.written == {"a"}
        again.add(again.output, b'{"custom_id":"b"}\n')
        again.close()
        assert [json.loads(one)["custom_id"] for one in results.output.read_bytes().splitlines()] == ["a", "b"]
    assert content("file-1").parent == data_dir / "batches"


def sample(at: float, waiting: float = 0, kv_usage: float = 0.5, running: float = 0, name: str = "i") -> InstanceSample:
    return InstanceSample(id=name, epoch=1, at=at, waiting=waiting, kv_usage=kv_usage, running=running)


def paced(*steps: tuple[InstanceSample, ...], lines: int = 99) -> list[int]:
    """Return the limit after each step."""
    limit, limits = turns.LinePace(), []
    for samples in steps:
        limit.step(samples, lines)
        limits.append(limit.most)
    return limits


def test_the_limit_is_doubled_until_the_first_queue_and_then_raised_in_steps() -> None:
    assert paced(*((sample(at),) for at in range(6))) == [8, 16, 32, 64, 64, 64]
    assert paced((sample(0),), (sample(1, waiting=8),), (sample(2),), (sample(3),)) == [8, 4, 6, 8]
    assert paced(*((sample(at, kv_usage=0.9), sample(at, kv_usage=0.7, name="j")) for at in range(4))) == [2, 1, 1, 1]
    assert paced((sample(0),), (), ()) == [8, 8, 8]


def test_a_sample_counts_once_however_often_it_is_read() -> None:
    busy = (sample(1, waiting=9),)
    assert paced((sample(0),), (sample(0),), busy, busy, busy) == [8, 8, 4, 4, 4]


def test_a_short_wait_is_not_a_queue_unless_other_traffic_may_be_waiting() -> None:
    moments = [(sample(at, waiting=at % 2 * 3, running=4),) for at in range(4)]
    assert paced(*moments) == [8, 16, 32, 64]
    assert paced(*moments, lines=4) == [8, 4, 6, 3]
    standing = [(sample(at, waiting=2, running=4),) for at in range(5)]
    assert paced(*standing) == [8, 16, 8, 10, 12]


def test_an_engine_that_is_gone_no_longer_counts() -> None:
    waits = [(sample(at, waiting=2), sample(at, name="j")) for at in range(2)]
    assert paced(*waits, (sample(2, name="j"),), (sample(3, waiting=2), sample(3, name="j"))) == [8, 16, 32, 64]


def test_only_the_pools_of_a_lines_model_slow_it_down() -> None:
    busy, idle = (InstanceSample(id=f"i{waiting}", epoch=1, at=0.0, waiting=waiting) for waiting in (3, 0))
    pools = {"llama": frozenset({"chat"}), "qwen": frozenset({"code"}), "asked-for": frozenset({"chat", "code"})}
    load = turns.EngineReports({"chat": [idle], "code": [busy]}, pools)
    assert [load.of(name) for name in ("llama", "qwen", "asked-for")] == [[idle], [busy], [idle, busy]]
    assert load.of("an adapter") == [idle, busy]


def test_usage_is_read_from_every_kind_of_answer() -> None:
    assert lines.usage_of({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == (3, 4)
    assert lines.usage_of({"usage": {"input_tokens": 3, "output_tokens": 4}}) == (3, 4)
    nothing = [{}, [], "x", {"usage": 7}, {"usage": {"prompt_tokens": "3"}}, {"usage": {"prompt_tokens": -1}}]
    assert [lines.usage_of(document) for document in nothing] == [(0, 0)] * 6
