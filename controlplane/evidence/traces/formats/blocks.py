"""The prefix blocks of a request: their size, which few files state, and numbers for their ids."""

from controlplane.evidence.traces.formats import fields

SIZES = (512, 256, 128, 64, 32, 16)  # block sizes in tokens; the largest that fits all rows is taken
LARGEST = 4_096
HASH_BITS = 64


class BlockSize:
    """The size of a file's blocks, by what its rows leave open."""

    def __init__(self, stated: int) -> None:
        self._left: tuple[int, ...] = (stated,) if stated else SIZES

    def check(self, row: fields.TraceLine, field: str, blocks: int, input_tokens: int) -> None:
        """Check that a row has as many blocks as the prompt fills, with or without a partial last block."""
        left = tuple(size for size in self._left if input_tokens // size <= blocks <= -(-input_tokens // size))
        if not left:
            counts = (
                f"{input_tokens // size:,} or {-(-input_tokens // size):,} of {size} tokens" for size in self._left
            )
            raise row.refused(field, blocks, f"blocks for {input_tokens:,} input tokens: {', '.join(counts)}")
        self._left = left

    @property
    def tokens(self) -> int:
        return self._left[0]


class BlockIds:
    """Numbers for block ids: ids as they are, hashes and texts by first appearance behind all ids, so that numbers are
    dense."""

    def __init__(self) -> None:
        self._numbers: dict[int | str, int] = {}

    def of(self, row: fields.TraceLine, field: str) -> list[int]:
        ids = row.present(field)
        if not isinstance(ids, list) or not all(map(_is_id, ids)):
            allowed = f"a list of whole numbers from 0 to {fields.MAX_BLOCK:,}, or of 64-bit hashes"
            raise row.refused(field, ids, allowed)
        return [block if type(block) is int and block <= fields.MAX_BLOCK else self._number(block) for block in ids]

    def _number(self, block: int | str) -> int:
        return self._numbers.setdefault(block, fields.MAX_BLOCK + 1 + len(self._numbers))


def _is_id(block: object) -> bool:
    if isinstance(block, str):
        return 0 < len(block) <= HASH_BITS
    return type(block) is int and 0 <= block < 1 << HASH_BITS
