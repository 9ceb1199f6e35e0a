"""Base models that see pictures."""
