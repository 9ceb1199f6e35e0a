"""Where a model came from, and what a scenario, a judge or a batch touched."""
