"""Key/value memory: the caches that a batch of sequences is given."""
