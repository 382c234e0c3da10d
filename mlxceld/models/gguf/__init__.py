"""GGUF files of llama-kind models into folders that mlx-lm loads."""
