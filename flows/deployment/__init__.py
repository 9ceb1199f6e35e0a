"""Deployed flows: their forms, worktrees, automations, what their pages show, and the services of `make ui`."""
