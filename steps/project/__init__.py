"""What the project's folder says: dvc.lock, chain.yaml, git, MLflow's store, the ledger."""
