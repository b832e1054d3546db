"""Compare the table of numbers with a dict."""

from hypothesis import given
from hypothesis import strategies as st

from router.prefix.exact.table import IntTable

# Few distinct home slots, so that entries displace each other; and keys as hashes yield them.
KEYS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 3).map(lambda home: home << 62),
    st.tuples(st.integers(0, 3), st.integers(0, 40)).map(lambda key: key[0] << 62 | key[1]),
    st.just(2**64 - 1),
    st.integers(0, 2**64 - 1),
).filter(lambda key: key != 1)  # 0 is stored as 1
STEPS = st.lists(st.tuples(st.booleans(), KEYS, st.integers(1, 2**32 - 1)), max_size=300)


@given(STEPS, st.sampled_from([1, 4]))
def test_a_table_holds_the_same_as_a_dict(steps: list[tuple[bool, int, int]], parts: int) -> None:
    table, model = IntTable(parts, "I"), dict[int, int]()
    for putting, key, value in steps:
        if putting:
            assert table.put(key, value) == model.get(key, 0)
            model[key] = value
        else:
            assert table.pop(key) == model.pop(key, 0)
        assert table.get(key) == model.get(key, 0)
    assert len(table) == len(model)
    assert {key: table.get(key) for key in model} == model
    assert sorted(table.values()) == sorted(model.values())


BATCHES = st.lists(st.tuples(st.sampled_from(["put", "pop", "change"]), st.lists(KEYS, max_size=40)), max_size=30)


@given(BATCHES, st.sampled_from([1, 4]))
def test_a_bulk_operation_equals_single_operations(batches: list[tuple[str, list[int]]], parts: int) -> None:
    table, model = IntTable(parts, "I"), dict[int, int]()
    for what, keys in batches:
        if what == "put":
            assert table.put_all(keys, range(1, len(keys) + 1)) == [
                put(model, *pair) for pair in zip(keys, range(1, 99), strict=False)
            ]
        elif what == "pop":
            assert table.pop_all(keys) == [model.pop(key, 0) for key in keys]
        else:
            before, changes = table.change(keys, lambda value: (value + 1) % 4)
            assert before == [put(model, key, (model.get(key, 0) + 1) % 4) for key in keys]
            assert changes == {value: (value + 1) % 4 for value in before}
    assert {key: table.get(key) for key in model} == model
    assert len(table) == len(model)


def put(model: dict[int, int], key: int, value: int) -> int:
    before = model.pop(key, 0)
    if value:
        model[key] = value
    return before


def test_many_keys_that_belong_to_the_last_slot_are_all_kept() -> None:
    table = IntTable(1, "Q")
    keys = [2**64 - 1 - number for number in range(200)]
    for key in keys:
        table.put(key, key)
    assert [table.get(key) for key in keys] == keys


def test_a_table_shrinks_as_it_empties() -> None:
    table = IntTable(1, "I")
    for key in range(2, 10_000):
        table.put(key * 0x9E3779B97F4A7C15 % 2**64, 1)
    full = table.bytes
    for key in range(2, 10_000):
        table.pop(key * 0x9E3779B97F4A7C15 % 2**64)
    assert table.bytes < full / 50
