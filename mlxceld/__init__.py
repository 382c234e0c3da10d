"""mlxceld: the background LLM service for a Mac."""

__version__ = "0.1.0"
