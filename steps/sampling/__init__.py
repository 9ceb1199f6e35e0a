"""Plays episodes, with vLLM's engine in this process."""
