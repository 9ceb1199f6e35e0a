"""Judging registered versions, and recording decisions about them."""
