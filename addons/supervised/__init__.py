"""Builds small policies from demonstrations."""
