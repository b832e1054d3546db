"""The first token of one stream, and another stream without it."""

from typing import Any

import orjson
import pytest

from router.flows.first_token import Without, chunks, first_token

DONE = b"data: [DONE]\n\n"


def chat(text: str | None, finish: str | None = None, **delta: Any) -> bytes:
    content = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": {**content, **delta}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"id": "x", "choices": [choice]}) + b"\n\n"


ROLE = chat("", role="assistant")


def rest(said: str, stream: bytes, size: int = 10_000) -> bytes:
    cut = Without(said.encode())
    return b"".join(cut.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + cut.finish()


def test_a_stream_of_one_token_becomes_a_beginning() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
    begun = first_token(ROLE + chat("one ", "length") + usage + DONE)
    assert begun == ROLE + chat("one ")
    assert "".join(chunk.text for chunk in chunks(begun)) == "one "


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_text_already_sent_is_left_out_however_the_bytes_arrive(size: int) -> None:
    stream = ROLE + chat("one ") + chat("two ") + chat(None, "stop") + DONE
    assert rest("one ", stream, size) == chat("two ") + chat(None, "stop") + DONE


def test_an_event_that_holds_more_than_the_first_token_keeps_the_rest() -> None:
    assert rest("one ", chat("one two ") + DONE) == chat("two ") + DONE


def test_a_decoder_with_other_words_loses_its_first_event() -> None:
    assert rest("one ", chat("uno ") + chat("two ") + DONE) == chat("two ") + DONE


def test_an_answer_that_ends_with_its_first_token_still_ends() -> None:
    assert rest("one ", ROLE + chat("one ", "length") + DONE) == chat("", "length") + DONE


def test_an_error_is_passed_on() -> None:
    broken = b'data: {"error":{"message":"no"}}\n\n'
    assert rest("one ", ROLE + broken) == broken


def test_plain_completions_have_their_text_elsewhere() -> None:
    def plain(text: str) -> bytes:
        return b"data: " + orjson.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) + b"\n\n"

    assert rest("one ", plain("one ") + plain("two ")) == plain("two ")
    assert first_token(plain("one ")) == plain("one ")


def test_an_unfinished_event_is_not_lost() -> None:
    assert rest("one ", chat("one ") + b"data: {") == b"data: {"
    assert rest("one ", b": comment") == b": comment"
