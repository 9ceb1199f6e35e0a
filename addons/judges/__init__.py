"""Judges beside the rule: weighted criteria, RULER, and comparisons of two policies."""
