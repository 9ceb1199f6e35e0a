"""Traces of what the agent did, sent to MLflow and Langfuse."""
