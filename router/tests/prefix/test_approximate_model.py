"""After any sequence of operations, the index answers as a naive one does, and its two halves agree."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.prefix.approximate import PrefixIndex
from router.prefix.chain import chunk_hashes
from router.tests.prefix.naive import NaiveIndex

INSTANCES = st.sampled_from([f"demo-{number}" for number in range(5)])
# Two letters and short chunks: prompts share prefixes of every length.
PROMPTS = st.text("ab", max_size=14).map(lambda text: chunk_hashes(text.encode(), chunk_bytes=1))


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_chunks=120, instance_chunks=32)
        self.naive = NaiveIndex(max_chunks=120, instance_chunks=32)
        self.sent: list[tuple[str, list[int]]] = []

    @rule(instance=INSTANCES, epoch=st.integers(1, 3), hashes=PROMPTS)
    def insert(self, instance: str, epoch: int, hashes: list[int]) -> None:
        assert self.index.insert(instance, epoch, hashes) == self.naive.insert(instance, epoch, hashes)
        self.sent.append((instance, hashes))

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 1_000), cached=st.integers(0, 14))
    def answer(self, which: int, cached: int) -> None:
        instance, hashes = self.sent[which % len(self.sent)]
        assert self.index.correct(instance, hashes, cached) == self.naive.correct(instance, hashes, cached)

    @rule(instance=INSTANCES, chunks=st.integers(1, 40))
    def limit(self, instance: str, chunks: int) -> None:
        self.index.limit(instance, chunks)
        self.naive.limit(instance, chunks)

    @rule(instance=INSTANCES)
    def purge(self, instance: str) -> None:
        self.index.purge(instance)
        self.naive.purge(instance)

    @rule(hashes=PROMPTS)
    def match(self, hashes: list[int]) -> None:
        assert self.index.match(hashes) == self.naive.match(hashes)

    @invariant()
    def holds_the_same_chunks(self) -> None:
        for number in range(5):
            held = self.naive.held.get(f"demo-{number}")
            assert self.index.chunks(f"demo-{number}") == (len(held.chunks) if held else 0)
        assert len(self.index) == len({chunk for held in self.naive.held.values() for chunk in held.chunks})


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndexAgreesWithTheNaiveOne = IndexMachine.TestCase
