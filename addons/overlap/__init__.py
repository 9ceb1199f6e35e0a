"""Rollouts that run ahead of the updates, beside them."""
