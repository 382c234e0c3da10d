"""What is known of the caches that mlx-lm's models keep: one adapter for each class of them."""
