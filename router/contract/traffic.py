BLOCK_CHUNKS = 8  # chunks of the prefix index (256 bytes) that make a block
