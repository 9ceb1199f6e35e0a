"""Measurements that anyone can run: `python -m benchmarks.<name>`, with --json one JSON object a line."""
