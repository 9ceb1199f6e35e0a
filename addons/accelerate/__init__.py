"""Processes of this machine that share an update."""
