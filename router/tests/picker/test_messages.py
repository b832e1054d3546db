"""A gateway's messages are read and written byte for byte as by Envoy's own definitions."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.picker import messages
from router.picker.protobuf import Malformed, fields, message, number, put
from router.picker.protobuf import messages as several
from router.tests.picker.asking import headers, metadata, modes


def test_integers_are_encoded_as_protocol_buffers_require() -> None:
    """The examples of https://protobuf.dev/programming-guides/encoding/."""
    assert put(1, 150) == bytes.fromhex("089601")
    assert put(2, "testing") == bytes.fromhex("120774657374696e67")
    assert put(3, put(1, 150)) == bytes.fromhex("1a03089601")


@given(st.lists(st.tuples(st.integers(1, 2**20), st.integers(0, 2**64 - 1) | st.binary(max_size=300)), max_size=8))
def test_a_written_field_can_be_read(values: list[tuple[int, int | bytes]]) -> None:
    found = fields(b"".join(put(name, value) for name, value in values))
    for name, _ in values:
        assert found[name] == [value for other, value in values if other == name]


@given(st.binary(max_size=60))
def test_other_bytes_are_read_or_rejected_as_malformed(raw: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(messages.read(raw).body, bytes)


@pytest.mark.parametrize(
    ("raw", "why"),
    [(b"\x0b", "wire type 3"), (b"\x12\x05a", "a field extends beyond the message's 3 bytes"), (b"\xff", "no end")],
)
def test_a_malformed_message_is_explained(raw: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        fields(raw)


def test_fields_of_other_kinds_are_skipped() -> None:
    fixed = b"\x0d\x01\x02\x03\x04" + b"\x11" + bytes(8)  # fields 1 and 2, of 32 and 64 bits
    assert number(fields(fixed + put(3, 7)), 3) == 7
    assert (message(fields(put(1, 5)), 1), number(fields(put(1, b"x")), 1)) == (b"", 0)


def test_the_subset_may_be_a_text_or_a_list() -> None:
    both = {"10.0.0.1:8000", "10.0.0.2:8000"}
    for given_ in ("10.0.0.1:8000, 10.0.0.2:8000", ["10.0.0.1:8000", "10.0.0.2:8000"]):
        said = messages.read(headers({":path": "/"}) + metadata("envoy.lb.subset_hint", messages.SUBSET, given_))
        assert said.subset == both
    assert messages.read(headers({}) + metadata("envoy.lb.subset_hint", messages.SUBSET, "")).subset == frozenset()
    assert messages.read(headers({}) + metadata("envoy.lb", "other", "x")).subset is None


def test_a_first_message_reports_headers_modes_and_its_end() -> None:
    said = messages.read(headers({":Path": "/v1", "x": "1"}, ends=True) + modes(request=2, response=4))
    assert said.headers == [(b":path", b"/v1"), (b"x", b"1")]
    assert (said.kind, said.ends, said.modes) == ("request_headers", True, messages.Modes(2, 4))


def test_a_large_body_is_sent_in_parts_and_ends_with_the_last() -> None:
    head, *parts = messages.picked_streamed(["10.0.0.1:8000"], [], [], b"x" * 130_000)
    assert 1 in fields(head)
    streamed = []
    for part in parts:
        mutation = message(fields(message(fields(message(fields(part), 3)), 1)), 3)
        streamed.append(fields(message(fields(mutation), 3)))
    assert b"".join(message(one, 1) for one in streamed) == b"x" * 130_000
    assert [number(one, 2) for one in streamed] == [0, 0, 1]
    trailed = messages.picked_streamed(["10.0.0.1:8000"], [], [], b"x", trailers=[b"x-a"])
    assert [sorted(fields(one)) for one in trailed] == [[1, 8], [3], [5]]


def test_a_health_request_names_a_service_and_the_answer_its_status() -> None:
    assert messages.asked_service(put(1, "readiness")) == "readiness"
    assert several(fields(messages.health(messages.SERVING)), 1) == []
    assert number(fields(messages.health(messages.SERVING)), 1) == 1
