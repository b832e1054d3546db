"""The simulated engine's tokenizer, hash chain and answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.simengine import generation
from fleet.simengine.generation import SamplingParams, TextGenerator

AUTHOR = TextGenerator(seed=1)


@given(st.text())
def test_each_four_bytes_or_part_of_them_are_one_token(text: str) -> None:
    data = text.encode()
    assert generation.count(data) == (len(data) + 3) // 4 == len(generation.to_ids(data))


@given(st.binary().filter(lambda data: not data.endswith(b"\0")))
def test_ids_convert_back_to_the_bytes(data: bytes) -> None:
    assert generation.from_ids(generation.to_ids(data)).rstrip(b"\0") == data


@given(st.binary(max_size=600), st.binary(max_size=600), st.integers(1, 8))
def test_two_chains_agree_exactly_as_far_as_the_texts_do(one: bytes, other: bytes, block_size: int) -> None:
    width = block_size * 4
    same = 0
    for left, right in zip(generation.chain(one, block_size), generation.chain(other, block_size), strict=False):
        if left != right:
            break
        same += 1
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert same == common // width


def test_a_chain_has_only_complete_blocks() -> None:
    assert [len(generation.chain(b"x" * size, 16)) for size in (0, 63, 64, 127, 128)] == [0, 0, 1, 1, 2]


def test_messages_are_rendered_up_to_the_beginning_of_the_answer() -> None:
    turns = [("system", "be brief"), ("user", "hi")]
    assert generation.render(turns) == b"<|system|>\nbe brief\n<|user|>\nhi\n<|assistant|>\n"


@given(st.binary(min_size=1, max_size=50), st.integers(1, 40_000))
def test_a_fixed_answer_has_four_plain_bytes_per_token(prompt: bytes, length: int) -> None:
    answer = AUTHOR.answer(prompt, SamplingParams(length, ignore_eos=True))
    assert (answer.tokens, len(answer.text.encode()), answer.reason) == (length, 4 * length, "length")
    assert set(answer.text) <= set("abcdefghijklmnopqrstuvwxyz ")


@given(st.binary(min_size=1, max_size=50), st.integers(1, 300), st.integers(0, 300))
def test_a_drawn_answer_keeps_its_bounds_and_gives_a_finish_reason(prompt: bytes, longest: int, shortest: int) -> None:
    answer = AUTHOR.answer(prompt, SamplingParams(longest, min(shortest, longest)))
    assert max(1, min(shortest, longest)) <= answer.tokens <= longest
    assert answer.reason == ("length" if answer.tokens == longest else "stop")


def test_an_answer_is_determined_by_seed_and_prompt() -> None:
    wanted = SamplingParams(50, ignore_eos=True)
    said = AUTHOR.answer(b"prompt", wanted)
    assert TextGenerator(seed=1).answer(b"prompt", wanted) == said
    assert TextGenerator(seed=2).answer(b"prompt", wanted).text != said.text
    assert AUTHOR.answer(b"other", wanted).text != said.text
    assert AUTHOR.answer(b"prompt", wanted, salt=7).text != said.text


def test_a_shorter_answer_is_the_beginning_of_a_longer_one() -> None:
    long = AUTHOR.answer(b"prompt", SamplingParams(900, ignore_eos=True))
    short = AUTHOR.answer(b"prompt", SamplingParams(90, ignore_eos=True))
    assert long.text.startswith(short.text)


def test_the_lengths_of_answers_vary_as_drawn() -> None:
    lengths = {AUTHOR.answer(b"%d" % i, SamplingParams(10_000)).tokens for i in range(50)}
    assert len(lengths) > 20


@pytest.mark.parametrize("min_tokens", [0, 6])
def test_a_stop_string_ends_the_answer_before_the_string(min_tokens: int) -> None:
    whole = AUTHOR.answer(b"p", SamplingParams(40, ignore_eos=True))
    stop = whole.text[21:26]
    answer = AUTHOR.answer(b"p", SamplingParams(40, min_tokens, True, ("never", stop)))
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert (answer.tokens, answer.reason, answer.stopped_by) == (7, "stop", stop)


def test_a_stop_string_is_ignored_before_the_minimum_of_tokens() -> None:
    whole = AUTHOR.answer(b"p", SamplingParams(40, ignore_eos=True))
    answer = AUTHOR.answer(b"p", SamplingParams(40, 30, True, (whole.text[4:8],)))
    assert answer.tokens >= 30
