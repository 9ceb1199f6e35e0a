"""Deployed flows: their forms, worktrees, what their pages show, and the services of `make ui`."""
