"""Generated prompts preserve the lengths and the shared prefixes of a trace."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.evidence.experiments.replay.prompts import WORDS, PromptWriter, text_of
from controlplane.evidence.traces.types import TraceRequest

BLOCK = 16
ids = st.lists(st.integers(0, 5), max_size=8)


def request(index: int, blocks: list[int], extra: int) -> TraceRequest:
    """Return a request with `extra` tokens after its blocks; a negative number cuts the last block."""
    tokens = max(1, len(blocks) * BLOCK + extra)
    return TraceRequest(index, 0.0, "s", tokens, 1, tuple(range(b, b + 1) for b in blocks), BLOCK, 0.0)


def shared(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_each_value_of_a_byte_has_a_word_of_four_bytes():
    assert len(set(WORDS)) == 256
    assert {len(word) for word in WORDS} == {4}


@given(ids, st.integers(-BLOCK + 1, BLOCK - 1))
def test_a_prompt_has_exactly_four_bytes_for_each_token(blocks, extra):
    asked = request(0, blocks, extra)
    assert len(PromptWriter().write(asked).encode()) == 4 * asked.input_tokens


@given(ids, ids)
def test_prompts_share_a_prefix_exactly_as_far_as_their_blocks_agree(first, second):
    a, b = PromptWriter().write(request(0, first, 3)), PromptWriter().write(request(1, second, 3))
    common = next(
        (i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
    )
    block = 4 * BLOCK
    # After the shared blocks a few words may be equal by chance, but never a whole block.
    assert common * block <= shared(a, b) < (common + 1) * block or first == second


@given(ids, st.integers(-BLOCK + 1, -1))
def test_a_cut_block_is_a_prefix_of_the_whole_one(blocks, extra):
    whole, cut = PromptWriter().write(request(0, blocks, 0)), PromptWriter().write(request(1, blocks, extra))
    if blocks:
        assert whole.startswith(cut)


def test_text_after_the_blocks_belongs_to_one_request_only():
    a, b = PromptWriter().write(request(0, [], 12)), PromptWriter().write(request(1, [], 12))
    assert shared(a, b) < 20


def test_another_salt_shares_nothing():
    asked = request(0, [1, 2], 0)
    assert shared(PromptWriter("x").write(asked), PromptWriter("y").write(asked)) < 20


def test_lengths_are_adapted_to_another_tokenizer():
    assert len(PromptWriter(bytes_per_token=3.0).write(request(0, [1, 2], 0))) == 3 * 2 * BLOCK


def test_a_shorter_text_is_a_prefix_of_a_longer_one():
    assert text_of("k", 100).startswith(text_of("k", 37))
