"""Plays episodes, with vLLM's engine in this process, scripted players, or models behind servers."""
