"""The admin HTTP API, on its own listener."""
