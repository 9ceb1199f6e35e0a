"""The project's state: dvc.lock, chain.yaml, git, MLflow's store, the ledger."""
