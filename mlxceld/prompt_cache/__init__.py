"""What is kept of finished prompts, and what is counted about it."""
