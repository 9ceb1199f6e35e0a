"""What a run measured, written to MLflow and Weights & Biases."""
