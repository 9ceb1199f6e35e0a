"""Scenarios from a model, and the check that splits share nothing."""
