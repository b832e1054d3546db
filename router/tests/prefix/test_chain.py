"""Chain hashes are equal exactly as far as the prompts are."""

from hypothesis import given
from hypothesis import strategies as st

from router.prefix.chain import SPAN_BYTES, PromptChains, chunk_hashes


def test_only_complete_chunks_are_hashed() -> None:
    assert chunk_hashes(b"") == []
    assert chunk_hashes(b"x" * 255) == []
    assert len(chunk_hashes(b"x" * 256)) == 1
    assert len(chunk_hashes(b"x" * 1023)) == 3


def test_equal_chunks_at_different_positions_have_different_hashes() -> None:
    hashes = chunk_hashes(b"x" * 256 * 50)
    assert len(set(hashes)) == 50


def test_hashes_are_the_same_in_every_process() -> None:
    """Routers that share nothing must agree, so Python's own randomised hash is unusable."""
    assert chunk_hashes(b"abcd" * 128, 256) == [0xE7A80CD9561D9848, 0xEA920DACB19A132]


def test_a_salt_separates_equal_prompts() -> None:
    assert not set(chunk_hashes(b"y" * 1024)) & set(chunk_hashes(b"y" * 1024, salt=1))


def test_hashes_fit_into_64_bits() -> None:
    assert all(0 <= value < 1 << 64 for value in chunk_hashes(bytes(range(256)) * 100))


@given(st.binary(max_size=200), st.binary(max_size=100), st.binary(max_size=100), st.integers(1, 16))
def test_prompts_share_the_hashes_of_their_common_prefix_and_no_others(
    prefix: bytes, left: bytes, right: bytes, chunk_bytes: int
) -> None:
    one, other = prefix + left, prefix + right
    a, b = chunk_hashes(one, chunk_bytes), chunk_hashes(other, chunk_bytes)
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        end = (index + 1) * chunk_bytes
        assert (x == y) == (one[:end] == other[:end])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40_000)), max_size=12), st.sampled_from([64, 256, 768]))
def test_known_spans_give_the_same_hashes(prompts: list[tuple[int, int]], chunk_bytes: int) -> None:
    """Sessions over six texts with a common beginning grow, shrink and are forgotten in between."""
    chains = PromptChains(spans=6, chunk_bytes=chunk_bytes)
    for number, length in prompts:
        prompt = (b"system prompt " * 1_000 + bytes([number]) * 40_000)[:length]
        assert list(chains.hashes(prompt)) == chunk_hashes(prompt, chunk_bytes)
        assert len(chains) <= 6


def test_the_most_recently_used_spans_are_kept() -> None:
    chains = PromptChains(spans=2)
    for letter in (b"a", b"b", b"a", b"c"):
        chains.hashes(letter * SPAN_BYTES)
    before = set(chains._spans)
    chains.hashes(b"a" * SPAN_BYTES)
    assert set(chains._spans) == before
    chains.hashes(b"b" * SPAN_BYTES)
    assert set(chains._spans) != before
