"""Compare the exact index with a model that keeps every block of every instance: both agree after any history of an
engine that evicts chains from their ends.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.prefix.blocks import block_hashes
from router.prefix.exact.index import DEVICE, DISK, HOST, ExactIndex

SIZE = 2  # tokens in a block
SEED = 7
INSTANCES = ("a", "b", "c")
TIERS = (DEVICE, HOST, DISK)
Chain = tuple[int, ...]  # one number per block

CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


def tokens(chain: Chain) -> bytes:
    return b"".join(number.to_bytes(4, "little") * SIZE for number in chain)


def name(instance: str, chain: Chain) -> int:
    """Return the instance's name for the last block of the chain."""
    return hash((instance, chain)) % 2**64 or 1


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = ExactIndex(SEED)
        self.held: dict[str, Counter[tuple[Chain, int]]] = {instance: Counter() for instance in INSTANCES}

    @rule(instance=st.sampled_from(INSTANCES), chain=CHAINS, again=st.integers(0, 5))
    def compute(self, instance: str, chain: Chain, again: int) -> None:
        """Compute a prompt, reusing its cached part unless the same prompt is being computed at the same time."""
        held = self.held[instance]
        first = 0
        while first < len(chain) and held[chain[: first + 1], DEVICE]:
            first += 1
        first = max(first - again, 0)
        fresh = [chain[: end + 1] for end in range(first, len(chain))]
        if not fresh:
            return
        parent = name(instance, chain[:first]) if first else None
        names = [name(instance, part) for part in fresh]
        self.index.store(instance, names, parent, tokens(chain[first:]), SIZE)
        held.update((part, DEVICE) for part in fresh)

    @rule(instance=st.sampled_from(INSTANCES), tier=st.sampled_from((HOST, DISK)))
    def copy_to_slower_tier(self, instance: str, tier: int) -> None:
        held = self.held[instance]
        chains = [chain for chain, where in list(held) if where == DEVICE and not held[chain, tier]]
        if chains:
            self.index.store(instance, [name(instance, chain) for chain in chains], None, b"", SIZE, tier)
            held.update((chain, tier) for chain in chains)

    @rule(instance=st.sampled_from(INSTANCES), tier=st.sampled_from(TIERS), which=st.integers(0, 100))
    def evict(self, instance: str, tier: int, which: int) -> None:
        """Evict a block that no other block continues on any tier."""
        held = self.held[instance]
        inner = {chain[:-1] for chain, _ in held}
        leaves = sorted(chain for chain, where in held if where == tier and chain not in inner)
        if leaves:
            chain = leaves[which % len(leaves)]
            self.index.drop(instance, [name(instance, chain)], tier)
            held[chain, tier] -= 1
            self.held[instance] = +held

    @rule(instance=st.sampled_from(INSTANCES), blocks=st.integers(0, 3))
    def clear(self, instance: str, blocks: int) -> None:
        self.index.clear(instance)
        self.held[instance] = Counter()
        self.index.sweep(blocks)

    @precondition(lambda self: any(self.held.values()))
    @rule(blocks=st.integers(1, 5))
    def sweep(self, blocks: int) -> None:
        self.index.sweep(blocks)

    @rule(chain=CHAINS)
    def match(self, chain: Chain) -> None:
        found = self.index.match(block_hashes(tokens(chain), SIZE, SEED), SIZE)
        wanted = {instance: self._wanted(held, chain) for instance, held in self.held.items()}
        assert found == {instance: counted for instance, counted in wanted.items() if any(counted)}

    def _wanted(self, held: Counter[tuple[Chain, int]], chain: Chain) -> tuple[int, int, int]:
        counted = [0, 0, 0]
        for end in range(1, len(chain) + 1):
            tier = next((tier for tier in TIERS if held[chain[:end], tier]), None)
            if tier is None:
                break
            counted[tier] += SIZE
        return (counted[0], counted[1], counted[2])

    @invariant()
    def counts_are_right(self) -> None:
        everybody = set()
        for instance, held in self.held.items():
            tiers = tuple(sum(1 for chain, where in held if where == tier) for tier in TIERS)
            assert self.index.blocks(instance) == tiers
            everybody |= {chain for chain, _ in held}
        assert self.index.held == sum(len(held) for held in self.held.values())
        assert len(self.index) >= len(everybody)
        assert self.index.has_lower == any(where != DEVICE for held in self.held.values() for _, where in held)

    def teardown(self) -> None:
        for instance in INSTANCES:
            self.index.clear(instance)
        while self.index.sweep(100):
            pass
        assert len(self.index) == 0
        assert self.index.held == 0


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_histories = Histories.TestCase
