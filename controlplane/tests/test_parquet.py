"""Parquet files byte by byte. PyArrow 25 has read the files behind these hashes with the same values."""

import gzip
import hashlib

import pytest

from controlplane.common.parquet import table

COLUMNS = {f"c{i}": (int, [1, None, 3] * 7) for i in range(20)} | {
    "f": (float, [1.5, None, -2.0] * 7),
    "s": (str, ["a", None, "ü…"] * 7),
    "none": (str, [None] * 21),
}


@pytest.mark.parametrize(
    ("columns", "sha256"),
    [
        (COLUMNS, "62e981d68d17d612545fb757a47a32aa98a8d56e9139c57dce636755af310ff1"),
        ({"a": (int, [])}, "403d0af618bbb79d25340832a8d0edd9dd47c9d72867073fc7176db91d4244e4"),
    ],
)
def test_a_table_has_the_bytes_that_other_readers_understand(columns, sha256):
    assert hashlib.sha256(table(columns)).hexdigest() == sha256


def test_a_page_has_a_mask_of_its_values_and_the_values():
    data = table({"n": (int, [5, None, -1])})
    start = data.index(b"\x1f\x8b")
    page = gzip.decompress(data[start : data.index(b"\x15\x02\x19", start)])
    assert page[:6] == b"\x02\x00\x00\x00\x03\x05"  # two bytes of levels: one group of eight, bits 0 and 2
    assert page[6:] == (5).to_bytes(8, "little") + b"\xff" * 8
    assert data[:4] == data[-4:] == b"PAR1"
