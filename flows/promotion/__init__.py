"""Judging registered versions, and recording what was decided."""
