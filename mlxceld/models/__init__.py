"""Finding, importing and loading models, and turning text into tokens and back."""
