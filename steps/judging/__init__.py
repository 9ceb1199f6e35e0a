"""Judges: rules, weighted criteria, RULER, and what is known about a judge."""
