"""What the flow `train` is made of: the run itself, and what is said at its end."""
