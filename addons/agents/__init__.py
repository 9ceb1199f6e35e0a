"""Runs the agents of rollout functions: the episode that a function gets, and the client that leases and reports them."""
