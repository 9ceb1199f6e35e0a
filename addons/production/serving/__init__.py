"""Serving a registered version by vLLM: the server's command and its guard."""
