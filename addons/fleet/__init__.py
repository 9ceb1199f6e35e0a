"""Sampling and training on other machines: Ray, and vLLM servers of your own."""
