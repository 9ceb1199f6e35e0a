"""DVC's side of a flow: running its stages, dvc.lock, parameters."""
