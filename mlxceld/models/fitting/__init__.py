"""Fitting a conversation to what a chat template can render."""
