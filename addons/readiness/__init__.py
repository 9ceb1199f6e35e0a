"""What a policy can do before it is trained, and the way that training takes from there."""
