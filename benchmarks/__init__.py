"""Measurements that anyone can run: `python -m benchmarks.<name>`, or the quick forms of all, `python -m benchmarks`."""
