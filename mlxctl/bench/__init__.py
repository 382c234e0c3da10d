"""The benchmark: seeded scenarios against servers that speak OpenAI's API, and what they took."""
