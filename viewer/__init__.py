"""Pages to browse trajectories. They need no Prefect, and no flow imports them."""
