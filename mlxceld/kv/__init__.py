"""Key/value memory: the caches of sequences and batches, and the pool of blocks that is shared."""
