"""Pages to browse trajectories: no Prefect, and no flow imports it."""
