"""What a line of a batch may be, and results that a crash cut in two."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.traffic.batches import lines, pace
from controlplane.traffic.batches.store import BatchResults, content
from router.contract.redis.sample import InstanceSample

CHAT = "/v1/chat/completions"


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
        ([b"\n"], "empty_file", None),
        ([b"x" * (lines.LONGEST_LINE + 1)], "line_too_long", None),
    ],
)
def test_the_fault_of_a_line_is_named(raw: list[bytes], code: str, param: str | None) -> None:
    (fault,) = lines.check(raw, CHAT).faults
    assert (fault.code, fault.param) == (code, param)


def test_no_more_lines_and_faults_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    assert [one.code for one in lines.check([line(str(i)) for i in range(9)], CHAT).faults] == ["too_many_lines"]
    assert len(lines.check([b"{\n"] * 500, CHAT).faults) == lines.MOST_FAULTS


def test_a_batch_names_no_more_models_than_a_dispatcher_can_pace() -> None:
    def naming(count: int) -> list[bytes]:
        return [line(str(i), body={"model": f"m{i % count}"}) for i in range(2 * count)]

    assert lines.check(naming(lines.MOST_MODELS), CHAT).faults == []
    (fault,) = lines.check(naming(lines.MOST_MODELS + 1), CHAT).faults
    assert (fault.code, fault.line, fault.param) == ("too_many_models", lines.MOST_MODELS + 1, "body.model")


def test_a_torn_last_line_is_cut_and_written_again(data_dir: Path) -> None:
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


def test_the_pace_falls_while_requests_wait_or_caches_are_full() -> None:
    def sample(waiting: float, kv_usage: float) -> InstanceSample:
        return InstanceSample(id="i", epoch=1, at=0.0, waiting=waiting, kv_usage=kv_usage)

    assert pace.allowed(10, [sample(0, 0.5)]) == 12
    assert pace.allowed(10, [sample(1, 0.5), sample(0, 0.1)]) == 5
    assert pace.allowed(10, [sample(0, 0.9), sample(0, 0.8)]) == 5
    assert (pace.allowed(1, [sample(5, 0.9)]), pace.allowed(64, [sample(0, 0.1)]), pace.allowed(10, [])) == (1, 64, 10)


def test_only_the_pools_of_a_lines_model_slow_it_down() -> None:
    busy, idle = (InstanceSample(id=f"i{waiting}", epoch=1, at=0.0, waiting=waiting) for waiting in (3, 0))
    pools = {"llama": frozenset({"chat"}), "qwen": frozenset({"code"}), "asked-for": frozenset({"chat", "code"})}
    load = pace.EngineReports({"chat": [idle], "code": [busy]}, pools)
    assert [load.of(name) for name in ("llama", "qwen", "asked-for")] == [[idle], [busy], [idle, busy]]
    assert load.of("an adapter") == [idle, busy]


def test_use_is_read_from_any_answer() -> None:
    assert lines.usage_of({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == (3, 4)
    assert lines.usage_of({"usage": {"input_tokens": 3, "output_tokens": 4}}) == (3, 4)
    nothing = [{}, [], "x", {"usage": 7}, {"usage": {"prompt_tokens": "3"}}, {"usage": {"prompt_tokens": -1}}]
    assert [lines.usage_of(document) for document in nothing] == [(0, 0)] * 6
