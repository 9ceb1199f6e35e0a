"""Trackers beside MLflow: Weights & Biases and Langfuse, and the traces of episodes."""
