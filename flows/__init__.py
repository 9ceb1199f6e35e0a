"""What Prefect runs. Imports go downwards: flows, steps, environments."""
