"""The one thread that owns MLX: sequences, batches, sampling."""
