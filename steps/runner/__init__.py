"""Runs a stage as a command whose outputs appear whole or not at all, in the warm worker or in a process of its own."""
