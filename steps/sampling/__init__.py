"""Plays episodes: vLLM's engine in this process, scripted players, models behind servers."""
