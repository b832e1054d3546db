"""The approximate prefix index's assumptions about the content of each instance."""

from hypothesis import given
from hypothesis import strategies as st

from router.prefix.approximate import PrefixIndex
from router.prefix.chain import chunk_hashes


def chain(text: str) -> list[int]:
    return chunk_hashes(text.encode(), chunk_bytes=1)


def index_with(**prompts: str) -> PrefixIndex:
    index = PrefixIndex(instance_chunks=1_000)
    for instance, prompt in prompts.items():
        index.insert(instance, 1, chain(prompt))
    return index


def test_an_empty_index_matches_no_instance() -> None:
    assert PrefixIndex().match(chain("abc")) == {}
    assert PrefixIndex().match([]) == {}


def test_match_is_the_longest_prefix_on_each_instance() -> None:
    index = index_with(a="system-one", b="system-two", c="other")
    assert index.match(chain("system-one-more")) == {"a": 10, "b": 7}


def test_a_prompt_is_looked_up_correctly_after_every_change() -> None:
    index, prompt = index_with(a="system"), chain("system-one")
    assert index.match(prompt) == index.match(prompt) == {"a": 6}
    index.insert("b", 1, prompt)
    assert index.match(prompt) == {"a": 6, "b": 10}
    index.limit("b", 8)
    assert index.match(prompt) == {"a": 6, "b": 8}
    index.purge("a")
    assert index.match(prompt) == {"b": 8}


def test_an_unshared_prompt_costs_one_look_up_and_matches_nothing() -> None:
    assert index_with(a="abc", b="abd").match(chain("xyz")) == {}


def test_a_thousand_instances_with_one_system_prompt_all_match() -> None:
    index = PrefixIndex()
    for number in range(1_000):
        index.insert(f"i-{number}", 1, chain("system"))
    assert index.match(chain("system and more")) == {f"i-{number}": 6 for number in range(1_000)}


def test_insert_reports_how_much_was_held_before() -> None:
    index = index_with(a="hello")
    assert index.insert("a", 1, chain("hello world")) == 5
    assert index.insert("b", 1, chain("hello world")) == 0


def test_the_least_recently_used_chain_is_evicted_first_from_its_end() -> None:
    index = PrefixIndex(instance_chunks=10)
    index.insert("a", 1, chain("old--"))
    index.insert("a", 1, chain("newer"))
    index.insert("a", 1, chain("xyz"))
    assert index.match(chain("old--")) == {"a": 2}
    assert index.match(chain("newer")) == {"a": 5}


def test_every_use_keeps_a_shared_prefix() -> None:
    index = PrefixIndex(instance_chunks=12)
    index.insert("a", 1, chain("sys-1234"))
    index.insert("a", 1, chain("xx"))
    index.insert("a", 1, chain("sys-"))
    index.insert("a", 1, chain("yyyyyy"))
    assert index.match(chain("sys-1234")) == {"a": 4}
    assert index.match(chain("xx")) == {"a": 2}


def test_a_prompt_longer_than_the_limit_keeps_its_head() -> None:
    index = PrefixIndex(instance_chunks=4)
    index.insert("a", 1, chain("abcdefgh"))
    assert index.match(chain("abcdefgh")) == {"a": 4}


def test_all_instances_together_stay_within_the_limit() -> None:
    index = PrefixIndex(max_chunks=1_000, instance_chunks=1_000)
    for round_number in range(3):
        for number in range(10):
            index.insert(f"i-{number}", 1, chain(f"{round_number}{number}" * 200))
    assert sum(index.chunks(f"i-{number}") for number in range(10)) <= 1_000


def test_a_new_epoch_forgets_the_cache_of_the_old_process() -> None:
    index = index_with(a="hello")
    index.insert("a", 2, chain("world"))
    assert index.match(chain("hello")) == {}
    assert index.match(chain("world")) == {"a": 5}


def test_a_late_report_from_an_old_epoch_is_ignored() -> None:
    index = PrefixIndex()
    index.insert("a", 5, chain("now"))
    assert index.insert("a", 4, chain("then")) == 0
    assert index.match(chain("then")) == {}


def test_a_purged_instance_holds_nothing_and_its_slot_is_reused() -> None:
    index = index_with(a="hello", b="help")
    index.purge("a")
    index.purge("a")
    assert index.match(chain("hello")) == {"b": 3}
    assert index.chunks("a") == 0
    index.insert("c", 1, chain("hello"))
    assert index.match(chain("hello")) == {"b": 3, "c": 5}


def test_nothing_remains_in_memory_when_all_are_purged() -> None:
    index = index_with(a="hello", b="help", c="other")
    for instance in "abc":
        index.purge(instance)
    assert len(index) == 0


def test_a_limit_applies_at_once_and_after_a_restart() -> None:
    index = index_with(a="abcdefgh")
    index.limit("a", 3)
    assert index.match(chain("abcdefgh")) == {"a": 3}
    index.insert("a", 2, chain("abcdefgh"))
    assert index.chunks("a") == 3


def test_an_uncached_first_prompt_is_held_afterwards() -> None:
    """The engine has computed the prompt: a correction concerns what was held before, never the prompt itself."""
    index = PrefixIndex()
    prompt = chain("brand new")
    index.insert("a", 1, prompt)
    assert index.correct("a", prompt, 0) == 0
    assert index.match(prompt) == {"a": 9}


def test_an_engine_that_evicted_more_than_assumed_loses_its_least_recently_used_chunks() -> None:
    index = PrefixIndex()
    index.insert("a", 1, chain("first-" * 10))
    index.insert("a", 1, chain("second" * 10))
    index.correct("a", chain("second" * 10), 0)
    index.insert("a", 1, chain("third-" * 10))
    index.insert("a", 1, chain("second" * 10))
    assert index.correct("a", chain("second" * 10), 20) == 40
    assert index.match(chain("first-" * 10)) == {"a": 20}
    assert index.match(chain("second" * 10)) == {"a": 60}
    assert index.match(chain("third-" * 10)) == {"a": 60}


def test_an_engine_that_had_more_than_predicted_needs_no_correction() -> None:
    index = index_with(a="abc")
    index.insert("a", 1, chain("abcdef"))
    assert index.correct("a", chain("abcdef"), 6) == 0
    assert index.chunks("a") == 6


def test_rounding_does_not_count_as_eviction() -> None:
    index = PrefixIndex()
    prompt = chain("x" * 100)
    index.insert("a", 1, prompt)
    index.insert("a", 1, prompt)
    index.correct("a", prompt, 0)  # the first of the two: nothing was held before
    index.insert("a", 1, prompt)
    assert index.correct("a", prompt, 90) == 0


def test_a_correction_subtracts_missing_tokens_once() -> None:
    index = PrefixIndex()
    index.limit("a", 100)
    prompt = chain("x" * 80)
    index.insert("a", 1, prompt)
    index.correct("a", prompt, 0)
    index.insert("a", 1, prompt)
    index.correct("a", prompt, 40)
    assert index.chunks("a") == 40
    index.insert("a", 1, prompt)
    assert index.chunks("a") == 80


def test_the_same_prompt_twice_at_once_does_not_count_as_an_eviction() -> None:
    """The second request also hits nothing if it starts before the first has been computed."""
    index = PrefixIndex()
    prompt = chain("x" * 100)
    index.insert("a", 1, prompt)
    index.insert("a", 1, prompt)
    assert index.correct("a", prompt, 0) == 0
    assert index.chunks("a") == 100


def test_instances_that_come_and_go_leave_no_slots_behind() -> None:
    index = PrefixIndex()
    for number in range(100):
        index.insert(f"run-{number}", 1, chain("abc"))
        index.purge(f"run-{number}")
    assert len(index._names) == 1


def test_corrections_for_unknown_prompts_are_ignored() -> None:
    index = index_with(a="abc")
    assert index.correct("nobody", chain("abc"), 0) == 0
    assert index.correct("a", [], 0) == 0


def test_requests_that_are_never_answered_do_not_accumulate() -> None:
    index = PrefixIndex(instance_chunks=16)
    for number in range(200):
        index.insert("a", 1, chain(f"{number:03}"))
    assert len(index._evictions["a"].promised) <= 16


def test_the_number_of_diverging_prompts_is_bounded_too() -> None:
    """However short a prompt is, it takes a slot."""
    index = PrefixIndex(max_stretches=40)
    for number in range(200):
        index.insert(f"i-{number % 2}", 1, chain(f"{number:03}"))
    assert 0 < index.chunks("i-0") <= 20 * 3
    assert index.match(chain("199")) == {"i-0": 2, "i-1": 3}
    assert index.match(chain("000")) == {}


def test_a_session_that_moves_stays_one_run_where_both_instances_hold_it() -> None:
    index = PrefixIndex()
    for turn in range(1, 40):
        index.insert("ab"[turn % 2], 1, chain("x" * 5 * turn))
    assert index.match(chain("x" * 300)) == {"a": 190, "b": 195}
    assert len(index._runs) == 2


def test_runs_that_were_split_are_matched_again_from_their_end() -> None:
    """An instance evicts from the end of its chain, whatever was split and joined before."""
    index = PrefixIndex()
    for instance in "abc":
        index.insert(instance, 1, chain("0123456789"))
    for instance, left in (("a", 8), ("b", 5), ("c", 3)):
        index.limit(instance, left)
    assert index.match(chain("0123456789")) == {"a": 8, "b": 5, "c": 3}
    assert len(index._runs) == 3
    index.limit("c", 100)
    index.insert("c", 1, chain("01234567"))
    assert len(index._runs) == 2
    index.limit("a", 2)
    assert index.match(chain("0123456789")) == {"a": 2, "b": 5, "c": 8}
    for instance in "abc":
        index.purge(instance)
    assert len(index) == len(index._runs) == 0


def test_an_empty_prompt_changes_nothing() -> None:
    index = index_with(a="abc")
    assert index.insert("a", 1, []) == 0
    assert index.chunks("a") == 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=12), st.integers(0, 12))))
def test_colliding_hashes_only_make_guesses_wrong(requests: list[tuple[str, list[int], int]]) -> None:
    """XXH64 is not cryptographic: a client can send prompts whose hashes are equal although their prefixes differ."""
    index = PrefixIndex(instance_chunks=8)
    for instance, hashes, cached in requests:
        assert all(0 < found <= len(hashes) for found in index.match(hashes).values())
        index.insert(instance, 1, hashes)
        index.correct(instance, hashes, cached)
        assert index.chunks(instance) <= 8
    for instance in "abc":
        index.purge(instance)
        assert index.chunks(instance) == 0
