"""Numbers in as many bytes as they need, as Protocol Buffers and Thrift's compact protocol write them."""


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)
