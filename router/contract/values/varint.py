"""Variable-length integers, as in Protocol Buffers and Thrift's compact protocol."""


def varint(value: int) -> bytes:
    """Encode seven bits per byte, the lowest first; the highest bit says that more bytes follow."""
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)
