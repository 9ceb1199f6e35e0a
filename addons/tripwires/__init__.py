"""Tripwires: what a run does wrong without an error."""
