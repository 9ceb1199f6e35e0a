"""Registered models: versions, model cards, the promotion gate and its decisions."""
