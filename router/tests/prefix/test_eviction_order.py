"""Against a plain model of the cache, the same blocks are evicted first, and as much of a prompt remains."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.prefix.blocks import block_hashes
from router.prefix.forecast.eviction_order import EvictionOrder

SIZE = 1  # tokens in a block
CHAINS = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(
    lambda numbers: array("Q", block_hashes(b"".join(number.to_bytes(4, "little") for number in numbers), SIZE, 5))
)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.eviction = EvictionOrder()
        self.held: set[int] = set()
        self.idle: dict[int, None] = {}  # least recently used first
        self.using: list[array[int]] = []

    def used(self, block: int) -> bool:
        return any(block in chain for chain in self.using)

    @rule(chain=CHAINS)
    def begin(self, chain: "array[int]") -> None:
        """Begin a request: it hits what is held of its prompt and computes the remainder."""
        found = next((place for place, block in enumerate(chain) if block not in self.held), len(chain))
        self.eviction.use(chain, found, busy=True)
        self.using.append(chain)
        for block in chain[:found]:
            self.idle.pop(block, None)
        if found < len(chain):
            self.eviction.stored(chain[found:], chain[found - 1] if found else 0, busy=True)
            self.held.update(chain)

    @precondition(lambda self: self.using)
    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        chain = self.using.pop(which % len(self.using))
        self.eviction.use(chain, len(chain), busy=False)
        for other in self.using:
            same = sum(block in other for block in chain)
            self.eviction.use(other, same, busy=True)
        self.idle.update((block, None) for block in reversed(chain) if not self.used(block))

    @rule(chain=CHAINS)
    def another_router_begins_and_ends(self, chain: "array[int]") -> None:
        """Store a chain that continues from an idle block, or from nothing; only events report it."""
        found = next((place for place, block in enumerate(chain) if block not in self.held), len(chain))
        if found == len(chain) or found:
            return
        self.eviction.stored(chain, 0, busy=False)
        self.held.update(chain)
        self.idle.update((block, None) for block in reversed(chain))

    @precondition(lambda self: self.idle)
    @rule(blocks=st.integers(1, 5))
    def evict(self, blocks: int) -> None:
        gone = list(self.idle)[:blocks]
        assert not self.eviction.gone(gone)
        for block in gone:
            del self.idle[block]
            self.held.remove(block)

    @rule(chain=CHAINS, blocks=st.integers(0, 12))
    def ask(self, chain: "array[int]", blocks: int) -> None:
        left = self.held - set(list(self.idle)[:blocks])
        held, wanted = (
            next((place for place, block in enumerate(chain) if block not in some), len(chain))
            for some in (self.held, left)
        )
        assert self.eviction.kept(chain, held, self.eviction.cutoff(blocks)) == wanted
        if held and self.eviction.uses(chain, held):
            assert wanted == held

    @invariant()
    def as_much_is_idle(self) -> None:
        assert self.eviction.idle == len(self.idle)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_histories = Histories.TestCase


def test_evicting_a_block_in_use_is_reported() -> None:
    eviction, chain = EvictionOrder(), array("Q", [11, 12, 13])
    eviction.stored(chain, 0, busy=True)
    assert eviction.gone([13, 99, 12]) == [13, 12]


def test_an_engine_with_another_eviction_order_leaves_nothing_behind() -> None:
    eviction = EvictionOrder()
    empty = eviction.bytes
    eviction.stored(array("Q", [11, 12, 13]), 0, busy=False)
    for held, block in ((2, 11), (1, 12), (0, 13)):
        eviction.gone([block])
        eviction.fit(held)
    assert (eviction.idle, eviction.bytes) == (0, empty)


def test_evicted_blocks_use_no_memory() -> None:
    eviction, chain = EvictionOrder(), array("Q", range(1, 1_000))
    empty = eviction.bytes
    eviction.stored(chain, 0, busy=False)
    assert eviction.bytes - empty >= 8 * len(chain)
    eviction.gone(chain[::-1])
    assert eviction.bytes == empty
