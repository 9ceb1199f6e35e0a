"""Asks models behind OpenAI-compatible servers."""
